"""Evaluation of traces: figures per scenario, beside those of the papers, as JSON or HTML.

runs        finds and checks traces
figures     one pass over all rows on Spark; the result is small sums
histogram   percentiles from sums
summary     figures per scenario from sums
cells       what is specific to cells: names, hops, and the figures of the papers
page        the HTML report, from `charts`
"""
