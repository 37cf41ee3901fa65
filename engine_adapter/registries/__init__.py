"""What an engine has now, as the gateway knows it: proposers, LoRA adapters, policies, metrics."""
