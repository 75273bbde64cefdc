"""The suite `freeman`: Freeman's measurements (2016, §7) repeated, beside his figures.

His brokers had a machine each and ours share this one, so ratios between rows say more than ratios
to his figures. A *point* is what is measured, a *row* what one run of it gave.

points   his policies, his figures, and the points of the short suite and of the sweep
sweep    runs the points, keeps rows in a directory, and goes on where it was interrupted
study    where the optimum of α lies, and why (§8.1)
page     the rows as CSV and as an HTML page with charts
"""
