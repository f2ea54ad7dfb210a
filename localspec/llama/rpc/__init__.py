"""llama.cpp's RPC: workers on other machines that take layers of the target."""
