"""How a publication travels: one module per protocol, each a machine without input or output.

Broker side: `authenticated` (also carries the direct rows of the policy table), `bracha`, `chain`,
`history`. Publisher side: `sender`, `chain_sender`. Subscriber side: `acceptance`. All of them
handle *runs*, and none knows the subscribers; `quorumcast.cell` composes them by channel policy.
"""
