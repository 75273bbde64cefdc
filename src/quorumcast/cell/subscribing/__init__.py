"""The subscriber of a cell: counts votes, asks for what it lacks, delivers in order."""
