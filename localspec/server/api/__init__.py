"""The APIs of OpenAI, Anthropic and llama-server: parsing requests, writing replies."""
