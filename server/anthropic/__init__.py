"""From a request in Anthropic's format to its answer: a translation on the path of a chat."""
