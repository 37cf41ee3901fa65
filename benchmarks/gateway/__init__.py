"""What the gateway itself costs, beside a bare uvicorn app."""
