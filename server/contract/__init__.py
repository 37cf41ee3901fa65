"""The OpenAPI document: what routes declare of their answers, and how the document is made."""
