"""`/v1/responses`: a chat in the format of OpenAI's Responses API, and the stored responses."""
