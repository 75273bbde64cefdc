"""Monitoring of hosts through a cell: probes, cleaning, a store, alarms and a report.

The five modules that FIT-Broker §2.1 names, each on its own side of a channel or a directory:

    probes   `host`, `follow`, `syslog`, `probes`   publish on the channels `metrics` and `logs`
    before   `clean`                                 what is impossible or doubled is found out
    store    `job`                                   Parquet by channel, host and day
    after    `signals`, `rules`, `watch`, `book`     windows, rules, correlation, alarms
    report   `report`                                one page, and the channel `alarms`

Probes need no Spark.
"""
