"""Training of the demo pair, two tiny Llama models that share one tokenizer."""
