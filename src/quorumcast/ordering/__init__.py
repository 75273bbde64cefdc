"""Total order: everybody sees everything in one order.

consensus    PROPOSE, WRITE, ACCEPT: one batch per instance, many instances at once
regency      STOP, STOP-DATA, SYNC: from one leader to the next without losing a decision
offers       what publishers want ordered, and the leader's fair choice among it
state        what decided batches make of it: positions, and who has been served
sequencer    all of it as one machine per quorum system
"""
