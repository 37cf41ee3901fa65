"""`specgate bench gateway`: what the gateway itself costs, beside a bare uvicorn app."""
