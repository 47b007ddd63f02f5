{{- define "kafka-throttle.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 54 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 54 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kafka-throttle.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kafka-throttle.labels" -}}
{{ include "kafka-throttle.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* The host that clients are told, or bootstrap at. */}}
{{- define "kafka-throttle.advertisedHost" -}}
{{- .Values.listener.advertisedHost | default (printf "%s.%s.svc" (include "kafka-throttle.fullname" .) .Release.Namespace) -}}
{{- end -}}

{{/* How many ports follow the bootstrap port. */}}
{{- define "kafka-throttle.nodePorts" -}}
{{- if eq .Values.listener.mode "ports" -}}
{{- add (len .Values.listener.nodeIds) (int .Values.listener.sparePorts) -}}
{{- else -}}
0
{{- end -}}
{{- end -}}

{{- define "kafka-throttle.upstream" -}}
{{- $upstream := .Values.upstream -}}
{{- $folder := "/secrets" -}}
{{- $secured := hasSuffix "SSL" $upstream.securityProtocol -}}
{{- $admin := dict "security_protocol" $upstream.securityProtocol -}}
{{- $tls := dict -}}
{{- if $upstream.caSecret -}}
{{- $ca := printf "%s/%s/ca.crt" $folder $upstream.caSecret -}}
{{- $_ := set $admin "ca_file" $ca -}}
{{- $_ := set $tls "ca_file" $ca -}}
{{- end -}}
{{- if $upstream.saslMechanism -}}
{{- $_ := set $admin "sasl_mechanism" $upstream.saslMechanism -}}
{{- $_ := set $admin "username" $upstream.username -}}
{{- $password := required "upstream.passwordSecret.name" $upstream.passwordSecret.name -}}
{{- $_ := set $admin "password_file" (printf "%s/%s/%s" $folder $password $upstream.passwordSecret.key) -}}
{{- end -}}
{{- $servers := required "upstream.bootstrapServers" $upstream.bootstrapServers -}}
{{- $made := dict "bootstrap_servers" $servers "admin" $admin -}}
{{- if $secured -}}
{{- $_ := set $made "tls" $tls -}}
{{- end -}}
{{- mergeOverwrite $made (deepCopy $upstream.settings) | toJson -}}
{{- end -}}

{{- define "kafka-throttle.listener" -}}
{{- $listener := .Values.listener -}}
{{- $made := dict "name" "clients" "port" (int $listener.port) "advertised_host" (include "kafka-throttle.advertisedHost" .) -}}
{{- if eq $listener.mode "sni" -}}
{{- $_ := set $made "advertised_node_host" (required "listener.advertisedNodeHost" $listener.advertisedNodeHost) -}}
{{- $_ := required "listener.tlsSecret, which the mode sni needs" $listener.tlsSecret -}}
{{- else -}}
{{- $_ := set $made "node_ids" $listener.nodeIds -}}
{{- if $listener.sparePorts -}}
{{- $first := add $listener.port (len $listener.nodeIds) 1 -}}
{{- $last := add $listener.port (int (include "kafka-throttle.nodePorts" .)) -}}
{{- $_ := set $made "spare_ports" (list (ternary (printf "%d" $first) (printf "%d-%d" $first $last) (eq $first $last))) -}}
{{- end -}}
{{- end -}}
{{- if $listener.tlsSecret -}}
{{- $folder := printf "/secrets/%s" $listener.tlsSecret -}}
{{- $_ := set $made "tls" (dict "certificate_file" (printf "%s/tls.crt" $folder) "key_file" (printf "%s/tls.key" $folder)) -}}
{{- end -}}
{{- mergeOverwrite $made (deepCopy $listener.settings) | toJson -}}
{{- end -}}

{{/* The configuration of the proxy as one value; `entries` are put in where it is written. */}}
{{- define "kafka-throttle.config" -}}
{{- $quotas := omit .Values.quotas "entries" -}}
{{- if gt (int .Values.replicaCount) 1 -}}
{{- $quotas = mergeOverwrite (dict "instances" (int .Values.replicaCount)) $quotas -}}
{{- end -}}
{{- if ne .Values.quotas.source "file" -}}
{{- $quotas = mergeOverwrite (dict "state_file" "/var/lib/kafka-throttle/quotas.json") $quotas -}}
{{- end -}}
{{- $cluster := dict "upstream" (include "kafka-throttle.upstream" . | fromJson) -}}
{{- $_ := set $cluster "listeners" (list (include "kafka-throttle.listener" . | fromJson)) -}}
{{- $_ := set $cluster "quotas" $quotas -}}
{{- if and .Values.divideQuotas (gt (int .Values.replicaCount) 1) (not (hasKey .Values.virtualCluster "fleet")) -}}
{{- $_ := set $cluster "fleet" (dict "topic" (printf "__kafka_throttle_claims_%s" .Values.virtualCluster.name) "session_timeout_ms" 10000) -}}
{{- end -}}
{{- $cluster = mergeOverwrite $cluster (deepCopy .Values.virtualCluster) -}}
{{- $made := dict "virtual_clusters" (list $cluster) -}}
{{- $_ := set $made "metrics" (dict "bind" "0.0.0.0" "port" 9404) -}}
{{- $_ := set $made "history" (dict "directory" "/var/lib/kafka-throttle/history") -}}
{{- $_ := set $made "limits" (dict "drain_s" (int .Values.drain.drainSeconds)) -}}
{{- $_ := set $made "drain" (dict "lame_duck_s" (int .Values.drain.lameDuckSeconds)) -}}
{{- mergeOverwrite $made (deepCopy .Values.config) | toJson -}}
{{- end -}}

{{/* The names of all secrets that are mounted, each once. */}}
{{- define "kafka-throttle.secrets" -}}
{{- $secrets := list .Values.upstream.caSecret .Values.listener.tlsSecret -}}
{{- if .Values.upstream.saslMechanism -}}
{{- $secrets = append $secrets .Values.upstream.passwordSecret.name -}}
{{- end -}}
{{- concat $secrets .Values.extraSecrets | compact | uniq | toJson -}}
{{- end -}}
