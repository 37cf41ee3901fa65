"""The engines, and the seam through which the gateway uses them."""
