"""What each event of the log means. `docs/reference/signals.md` is made of this and of the calls in the source."""

from collections.abc import Mapping
from typing import Final

LOG_EVENTS: Final[Mapping[str, Mapping[str, str]]] = {
    "The process": {
        "starting": "The process begins. `build` says whether compiled or pure Python runs.",
        "listening": "A listener accepts connections at these ports, from clients with this `security.protocol`.",
        "ready": "`/readyz` says that the proxy is ready. Comes with each change.",
        "not_ready": "`/readyz` says that the proxy is not ready, for these reasons. Comes with each change. At level "
        "info in the first 30 s of a start, and at the end of a process that was told to end or has handed over.",
        "stopping": "The process ends: it accepts no more connections, and `connections` are open.",
        "stopping_at_once": "A second signal to stop has come: nothing is waited for any more.",
        "stopped": "The process has ended.",
        "worker_lost": "A worker has ended, with exit `status` (below 0: by this signal), and with it its connections. "
        "Another one takes its place.",
        "worker_replaced": "The process `worker_pid` serves clients in place of a worker that has ended.",
        "worker_not_started": "A worker could not start. It is tried again after a pause.",
        "proxy_not_started": "A worker could not start, when the proxy did. The proxy stops, with exit status 1.",
        "worker_failed": "A worker could not do what the supervisor asked for (`question`), or was silent for too "
        "long. `problem` says why, and whether another worker replaces it.",
        "worker_stopped": "A worker has closed its connections, and ends.",
        "worker_link_given_up": "A worker, or its supervisor, reads nothing any more, and is given up.",
        "worker_forker_lost": "The process that starts workers has ended. The proxy stops, with exit status 1.",
        "supervisor_lost": "The supervisor has ended, so this worker closes its connections and ends.",
        "handover_started": "SIGUSR2 has come: the process starts the one that takes over `sockets` listening sockets.",
        "handover_finished": "The process `successor_pid` accepts the connections. It got `rows` rows of sensors, and "
        "for `suspended_ms` no process accepted connections: they waited.",
        "handover_failed": "The process that was to take over did not start. This one goes on.",
        "successor_lost": "The process that has taken over has ended, while this one still had connections.",
        "predecessor_lost": "The process that was to hand over has ended. This one goes on without its measurements.",
        "sensors_taken_over": "This process continues `rows` rows of sensors of the process before it. It left out "
        "`left_out` rows, which no quota needs any more or for which there is no room.",
        "sensors_not_taken_over": "What the process before has measured is not used: the sensors begin empty, those of "
        "one virtual cluster if it is named.",
        "sensors_not_kept": "`restart.sensors_file` could not be written: the sensors of the next process begin empty.",
        "few_descriptors": "The process may open too few files for `limits.max_connections`: see LimitNOFILE. At level "
        "info if more than nine tenths of the connections are possible.",
        "accept_failed": "The system could not accept a connection at a port. The proxy tries again after a pause.",
        "http_connections_refused": "The HTTP listener is full. `connections` were closed since the last such line; "
        "one line a minute at most.",
        "http_requests_refused": "An HTTP listener refuses requests, for `reason`: `requests` since the last such "
        "line; one line a minute at most for each reason.",
        "http_handshakes_failed": "TLS handshakes fail at an HTTP listener, on `connections` since the last such line; "
        "one line a minute at most.",
        "http_requests_malformed": "Bytes that are not HTTP came at an HTTP listener, on `connections` since the last "
        "such line; one line a minute at most.",
        "status_page_failed": "A bug of the proxy: open status pages were not kept up to date, and connect again. "
        "Please report the traceback.",
        "background_task_failed": "A bug of the proxy, in its background work `task`. Work that looks after something "
        "goes on; work that was to end, such as the start of a worker, has ended. `failures` is the number since the "
        "last such line; at most one line a minute for each task. Please report the traceback.",
        "internal_error": "A bug of the proxy. One connection is closed, and others go on. Please report the "
        "traceback.",
        "log_lines_dropped": "Before this line, so many `lines` of the log were dropped, because standard error was "
        "not read, or could not be written.",
        "unraisable_error": "A bug of the proxy or of a library, at a place where Python cannot raise it.",
    },
    "Configuration and certificates": {
        "config_reloaded": "The changed file is in force.",
        "config_rejected": "The changed file has these problems. The old settings stay in force.",
        "config_warning": "A setting is allowed, but may have been meant differently.",
        "certificate_renewed": "Changed files of a certificate are in use.",
        "certificate_rejected": "Changed files of a certificate have these problems. The old ones stay in use.",
        "certificate_expires_soon": "A certificate has a quarter of its validity left, or 30 days. Once a day.",
        "certificate_expired": "A certificate has expired. At once, and once a day.",
    },
    "The cluster": {
        "cluster_reached": "The cluster has named its nodes: for the first time, or after a failure.",
        "nodes_changed": "The cluster has other nodes than before: these are `gone`, and these have `come`. At level "
        "warning if any is gone.",
        "own_login_missing": "The cluster wants a login of the proxy (SASL), and upstream.admin has none. Clients are "
        "served: the nodes are learned from the cluster's responses to them.",
        "cluster_unreachable": "Neither a bootstrap server nor another known node has named the nodes. Comes again "
        "when the reason changes.",
        "bootstrap_servers_silent": "These bootstrap servers did not respond, but the node `asked` did. Comes again "
        "when one more does not respond.",
        "bootstrap_servers_respond": "All bootstrap servers respond again, after `bootstrap_servers_silent`.",
        "node_left_out": "No port is left for a node, so it is left out of responses: of `responses` since the last "
        "such line; one line a minute at most.",
        "node_address_refused": "The proxy does not connect to the address that the cluster reports for a node: its "
        "port is not valid, it is a listener of this proxy or leads back to it, or it is outside of "
        "`upstream.node_networks`. Once for each node.",
        "default_partitions_unknown": "No node says how many partitions a topic gets that is created without a "
        "number; the proxy takes 1.",
        "host_not_resolved": "The host name of a quota has no address. Once until it has one.",
    },
    "Quotas": {
        "quotas_known": "The quotas are known, after `quotas_unknown`.",
        "quotas_unknown": "The source of the quotas was never read: nobody is throttled, or connections are refused. "
        "Once a minute.",
        "quotas_changed": "Quotas have come in force: `changed` entities have others than before.",
        "quota_changed": "One quota has changed, in the source or in the file that `layer` names: by an edit, a "
        "reload, `kafka-throttle quotas`, or in the cluster. Without `old` there was no quota before, without "
        "`new` there is none now, without `scope` it is as before.",
        "quota_altered": "One quota was changed through Kafka's API, by this client.",
        "quota_alteration_refused": "A change through Kafka's API could not be written.",
        "quota_changes_unlisted": "So many further quotas changed at the same time: the first 100 have a line each.",
        "quota_request_denied": "A client has asked for quotas or a change of quotas that its user has no right to. "
        "Further ones are counted.",
        "quota_requests_denied": "The sum of such requests since the last line: a minute after it, or when there are "
        "no more.",
        "quota_problem": "The source has a problem at `place`. The last good quotas stay in force.",
        "quota_problem_ended": "This problem is over.",
        "quota_problems_unlisted": "So many further problems have come, or have `ended`, at the same time: the first "
        "100 have a line each.",
        "sensors_full": "A table of sensors is full, so newcomers share one: `newcomers` since the last such line; "
        "one line a minute at most.",
    },
    "Throttles": {
        "throttle_started": "A quota throttles a connection for the first time, or again after 11 s without a "
        "throttle.",
        "throttle_ended": "No throttle for 11 s, or the connection has ended: the sum of these throttles.",
    },
    "Connections of clients": {
        "connection_closed": "A connection has ended, for this reason. `client_id` is that of its first request; "
        "`software_name` and `software_version` are what the client said in ApiVersions. The line is at level debug if "
        "the connection only tested the port; if the same fault of the same address was logged in this minute; or if "
        "the client ended it soon (by a reset, within 1 s, or after one request or less), and ten such connections of "
        "its address were logged in this minute.",
        "connections_closed": "How many connections of an address have ended so since the last sum, if some of them "
        "are at level debug because such lines were logged already: once a minute, and when there are no more. "
        "`faults` has the number for each reason.",
        "connection_refused": "A connection was refused: the first of its address for this reason. Further ones are "
        "counted.",
        "connections_refused": "The sum of the refused connections of an address since the last line: a minute after "
        "it, or 10 s after the last one. One more key for each reason has the number.",
        "connection_limit_reached": "A limit of connections is reached: further ones wait, or are closed.",
        "connection_limit_over": "The limit was not reached for 10 s: how many connections waited or were refused.",
        "server_name_missing": "A TLS client asks for no server name, and is served as one that bootstraps. Further "
        "ones of its address are counted.",
        "server_names_missing": "The sum of such connections since the last line.",
        "user_not_visible": "The proxy cannot see the user of a login, so several clients share the quotas of this "
        "name. Once for each name.",
        "sasl_not_required": "A client has logged in though `sasl.required` is not set. Once for each listener.",
    },
    "The fleet": {
        "fleet_joined": "The other instances know of this one, so it has its share of each limit. Comes again after "
        "each `fleet_cut_off`.",
        "fleet_member_joined": "Another instance has joined: limits are divided among `members`.",
        "fleet_member_left": "Another instance has left, or was not heard of for `session_timeout_ms`.",
        "fleet_cut_off": "This instance does not hear of the others; after a start, for more than 30 s. Until it hears "
        "of them, it gives out what it gave out before, at most one part of `members` of each limit.",
        "fleet_reached": "The other instances know again of this one, which was cut off.",
        "fleet_problem": "What is wrong with the way to the others; with `other`, with what that instance has "
        "published.",
        "fleet_problem_ended": "It is right again.",
        "fleet_document_refused": "What the instance `other` has published makes no sense, and its last good claims "
        "stay in force; or the topic `other` has a record that no instance writes. At most once a minute for each: how "
        "many `documents` were refused.",
        "fleet_claims_exceed_limit": "The claims of `keys` quotas added up to more than the limit for long: an error "
        "in some instance. This one has lowered its claims.",
        "fleet_name_taken": "Another instance has had the name of this one for a minute: give each its own "
        "`usage.instance`. Limits are divided rightly all the same.",
    },
    "The history": {
        "history_writing_failed": "Seconds of the past cannot be written. They are dropped, and traffic goes on.",
        "history_writing_resumed": "Seconds of the past are written again.",
        "history_segment_removed": "The file that was being written was removed or moved, and so many `seconds` with "
        "it. Another file is begun.",
    },
    "Usage records": {
        "usage_writing_failed": "Records cannot be written. They wait, and writing is tried every second.",
        "usage_writing_resumed": "Records can be written again.",
        "usage_file_written_again": "A file was removed or moved before it was complete, or cannot be read any more. "
        "Its `records` were copied into another file; `lost` is how many could not be read from it.",
        "usage_directory_not_synced": "The directory could not be synced, so complete files might not survive a crash "
        "of the machine. It is synced again with the next file. Once until that succeeds.",
        "usage_records_dropped": "The queue is full, so records are dropped. Once until it has room again.",
        "usage_records_kept_again": "The queue has room again: how many records were dropped since the start.",
        "usage_records_lost": "The process ends, and these records cannot be written.",
        "usage_files_deleted": "Files were deleted because they are too old or too many.",
        "usage_files_not_deleted": "Files that are too old or too many cannot be deleted.",
        "usage_file_salvaged": "A file of an earlier process was completed.",
        "usage_file_not_salvaged": "A file of an earlier process cannot be completed.",
        "usage_shipping_failed": "Lines cannot be sent to the topic. It is tried again.",
        "usage_shipping_resumed": "Lines are sent to the topic again.",
        "usage_shipping_waits": "Another process ships from this spool, or its files cannot be used.",
        "usage_shipping_not_started": "The process that ships cannot be started.",
        "usage_shipping_ended": "The process that ships has ended. It is started again.",
        "usage_position_unreadable": "The file that says what was shipped is damaged: all files are sent again.",
        "usage_file_not_shipped": "A file in the spool does not come from a proxy. Once for each.",
        "usage_files_lost_unshipped": "Files were deleted before they were shipped.",
        "usage_line_too_long": "A line is longer than any of kafka-throttle, and is not sent.",
    },
}
"""The meaning of each event, by what it is about."""

SECTIONS: Final[Mapping[str, str]] = {
    "The cluster": "Lines also have `virtual_cluster`, and those about a listener `listener`.",
    "Quotas": "Lines also have `virtual_cluster` and `source`. Those about a request also have `listener`, "
    "`connection_id`, `client` (address and port), `node_id`, `user` and `client_id`.",
    "Throttles": "Lines also have `virtual_cluster`, `listener`, `connection_id` and `client` (address and port).",
    "The fleet": "Lines also have `virtual_cluster`, and as `member` the name of this instance in the fleet.",
    "Connections of clients": "Lines about one connection also have `virtual_cluster`, `listener`, `connection_id`, "
    "`client` (address and port), `node_id` unless the client bootstraps, and behind a load balancer `proxied_by`.",
}
"""The keys that are bound to the logger, and not given with each event."""
