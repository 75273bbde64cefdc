"""Total order: everybody sees everything in one order.

offers         what publishers want ordered, and the leader's fair choice among it
consensus      PROPOSE, WRITE, ACCEPT: one batch per instance, many instances at once
leader_change  STOP, STOP-DATA, SYNC: from one leader to the next without losing a decision
execution      decided batches become positions in the replicated state
checkpoints    checkpoints, catching up and state transfer
sequencer      all of it as one machine per quorum system
"""
