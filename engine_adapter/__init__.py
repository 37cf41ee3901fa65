"""The engines behind the gateway, and the plain types that cross the seam to them."""
