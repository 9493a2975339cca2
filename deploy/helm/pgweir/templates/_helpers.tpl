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
{{- if $database.urlSecret.name }}
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
{{- /* Numbers of a values file arrive as floats. */}}
- {name: PGWEIR_{{ upper $name }}, value: {{ if kindIs "float64" $value }}{{ if eq (floor $value) $value }}{{ $value | int64 | quote }}{{ else }}{{ $value | quote }}{{ end }}{{ else if kindIs "bool" $value }}{{ ternary "1" "0" $value | quote }}{{ else }}{{ $value | quote }}{{ end }}}
{{- end }}
{{- end -}}
