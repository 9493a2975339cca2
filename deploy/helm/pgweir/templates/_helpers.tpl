{{- define "pgweir.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "pgweir.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "pgweir.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "pgweir.selector" . }}
{{- end -}}

{{- define "pgweir.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "pgweir.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* The environment that pgweir entrypoint makes a configuration from. */ -}}
{{- define "pgweir.environment" -}}
{{- $database := .Values.database -}}
- {name: PGWEIR_LISTEN_PORT, value: "6432"}
- {name: PGWEIR_HTTP_LISTEN, value: "0.0.0.0:9127"}
- {name: PGWEIR_SHUTDOWN_DRAIN_SECONDS, value: {{ .Values.drainSeconds | int64 | quote }}}
{{- if .Values.entries.databases }}
{{- /* The entries have the databases. */}}
{{- else if $database.urlSecret.name }}
- name: DATABASE_URL
  valueFrom:
    secretKeyRef: {name: {{ $database.urlSecret.name | quote }}, key: {{ $database.urlSecret.key | quote }}}
{{- else }}
- {name: DB_HOST, value: {{ required "set database.urlSecret.name, database.host or existingConfigSecret" $database.host | quote }}}
- {name: DB_PORT, value: {{ $database.port | int64 | quote }}}
{{- with $database.name }}
- {name: DB_NAME, value: {{ . | quote }}}
{{- end }}
{{- with $database.user }}
- {name: DB_USER, value: {{ . | quote }}}
{{- end }}
{{- if $database.passwordSecret.name }}
- name: DB_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ $database.passwordSecret.name | quote }}, key: {{ $database.passwordSecret.key | quote }}}
{{- end }}
{{- end }}
{{- range $name, $value := .Values.settings }}
- {name: PGWEIR_{{ upper $name }}, value: {{ include "pgweir.value" $value | quote }}}
{{- end }}
{{- if .Values.usersSecret.name }}
- {name: PGWEIR_AUTH_FILE, value: /secrets/users/userlist.txt}
{{- end }}
{{- with .Values.tls.clients }}
{{- if .secret }}
- {name: PGWEIR_CLIENT_TLS_SSLMODE, value: {{ .sslmode | quote }}}
- {name: PGWEIR_CLIENT_TLS_CERT_FILE, value: /secrets/tls-clients/tls.crt}
- {name: PGWEIR_CLIENT_TLS_KEY_FILE, value: /secrets/tls-clients/tls.key}
{{- end }}
{{- end }}
{{- with .Values.tls.servers }}
{{- if .secret }}
- {name: PGWEIR_SERVER_TLS_SSLMODE, value: {{ .sslmode | quote }}}
- {name: PGWEIR_SERVER_TLS_CA_FILE, value: /secrets/tls-servers/ca.crt}
{{- end }}
{{- end }}
{{- $hasList := or .Values.usersSecret.name .Values.entries.databases }}
{{- include "pgweir.people" (dict "prefix" "ADMIN" "people" .Values.console.admins "hasList" $hasList) }}
{{- include "pgweir.people" (dict "prefix" "STATS" "people" .Values.console.readers "hasList" $hasList) }}
{{- end -}}

{{- /* Users of the console and their passwords, which the entry point adds to the list of users that it writes. A list of users that is
mounted has them. */ -}}
{{- define "pgweir.people" -}}
{{- if .people.users }}
- {name: {{ if .hasList }}PGWEIR_{{ end }}{{ .prefix }}_USERS, value: {{ join "," .people.users | quote }}}
{{- with .people.passwordsSecret }}
{{- if .name }}
{{- if $.hasList }}{{ fail "passwordsSecret has no effect with usersSecret or entries.databases: write these users into usersSecret" }}{{ end }}
- name: {{ $.prefix }}_PASSWORDS
  valueFrom:
    secretKeyRef: {name: {{ .name | quote }}, key: {{ .key | quote }}}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* A value as pgweir.ini has it. Numbers of a values file arrive as floats. */ -}}
{{- define "pgweir.value" -}}
{{- if kindIs "float64" . }}{{ if eq (floor .) . }}{{ . | int64 }}{{ else }}{{ . }}{{ end }}{{ else if kindIs "bool" . }}{{ ternary "1" "0" . }}{{ else }}{{ . }}{{ end }}
{{- end -}}

{{- /* The sections of `entries`; a value with blanks or quotes is enclosed in quotes. */ -}}
{{- define "pgweir.entries" -}}
{{- $values := .Values -}}
{{- range $section := list "databases" "users" "clusters" "nodes" "routes" }}
{{- with index $values.entries $section }}
[{{ $section }}]
{{- range $name, $keys := . }}
{{ $name }} ={{ range $key, $value := $keys }} {{ $key }}={{ $text := include "pgweir.value" $value }}{{ if regexMatch "[\\s']" $text }}'{{ $text | replace "'" "''" }}'{{ else }}{{ $text }}{{ end }}{{ end }}
{{- end }}
{{ end }}
{{- end }}
{{- end -}}

{{- /* Whether something is read after the file or the environment. */ -}}
{{- define "pgweir.hasEntries" -}}
{{- $entries := .Values.entries -}}
{{- if or $entries.databases $entries.users $entries.clusters $entries.nodes $entries.routes }}yes{{ end -}}
{{- end -}}
