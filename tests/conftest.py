"""What every test process needs before transformers or vLLM is imported."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
# Threads that spin at a barrier while the one they wait for has no core make a busy machine slow.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
