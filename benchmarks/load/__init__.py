"""`specgate bench load`: several servers, or one with several settings, under the same load."""
