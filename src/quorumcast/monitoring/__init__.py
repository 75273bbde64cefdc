"""Monitoring of hosts through a cell: probes, cleaning, a store, alarms and a report.

The five modules of FIT-Broker §2.1. Channels and directories separate them:

    probes         `host`, `follow`, `syslog`, `probes`   publish on `metrics` and `logs`
    preprocessing  `clean`                                marks impossible rows, removes duplicates
    store          `job`, `store`                         Parquet by channel, host and day
    analysis       `signals`, `rules`, `engine`           windows, rules, correlation, alarms
    report         `report`                               one page, and the channel `alarms`

Probes need no Spark.
"""
