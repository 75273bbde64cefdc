"""Evaluation: from traces to figures, beside those of the documents, and a report that shows them.

runs        find traces, refuse what is not one
figures     one pass over all rows on Spark, down to small sums
histogram   percentiles from sums
summary     from sums to what people ask for, scenario by scenario
cells       what is known of cells alone: names, hops, and their scenarios in the documents
svg, page   the report
"""
