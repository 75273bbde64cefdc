"""The audit: finds faulty nodes in the observations and documents of many runs.

    observations ──▶ charges ──▶ diagnosis ──▶ verdicts ──▶ report
    documents ──▶ proofs ──┘

`sifting` and `job` run on Spark. The judgement is plain Python and is tested without it.
"""
