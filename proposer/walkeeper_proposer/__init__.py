"""The proposer: a stock primary's synchronous standby that drives the consensus.

consensus/                  campaign and lead (proposer, leadership), send (feeding, wal_window),
                            and: may this primary write this log? (admission, primary_check);
                            members/ has the change of members
logical/                    pgoutput's messages to a logical log's entries, and LSNs back
proposer_driver             performs the core's effects on its ports
postgres/, links            those ports for real: the primary, and the safekeepers
proposer_daemon, settling   clocks, signals, and a new proposer after one that was deposed
"""
