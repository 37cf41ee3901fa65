"""Who decides which proposer drafts: per request (`selection`) and for all (`switcher`)."""
