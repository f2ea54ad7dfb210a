"""OpenAI's API: parsing requests, writing replies."""
