"""What every other room is built from: names, quorums, tallies, messages, the machine contract."""
