"""Control of speculation: the proposer of a request (`selection`), the default one (`switcher`)."""
