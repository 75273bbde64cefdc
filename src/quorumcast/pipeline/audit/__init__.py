"""The audit: who lied, towards whom and when; what is proven, and what is suspected.

    tables ──▶ charges ──▶ diagnosis ──▶ verdicts ──▶ report
    documents ──▶ proofs ──┘

Everything but `job` is plain Python over small tables and is tested without Spark.
"""
