"""The proposer: a stock primary's synchronous standby that drives the consensus.

consensus, progress, feeding, wal_window     the core: campaign, lead, commit
gate, primary_check, comparison, greetings   may this primary write this log?
driver                                       performs the core's effects on ports
primary*, daemon                             the shell: PostgreSQL, links, clocks
"""
