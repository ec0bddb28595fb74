package core

import (
	"crypto/tls"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis"
)

// Secrets is the core/v1 secrets resource.
var Secrets = apis.Resource{
	Version: "v1", Kind: "Secret", Plural: "secrets",
	ChecksNameOnUpdate: true,
	New:                apis.New[corev1.Secret], NewList: apis.NewList[corev1.SecretList],
	NoGeneration:   true,
	Default:        apis.On(defaultSecret),
	PrepareUpdate:  apis.OnUpdate(keepSecretType),
	Validate:       apis.Check(validateSecret),
	ValidateUpdate: apis.CheckUpdate(validateSecretUpdate),
	Warnings:       apis.Warn(secretWarnings),
	Fields: apis.Selectable(map[string]func(*corev1.Secret) string{
		"type": func(s *corev1.Secret) string { return string(s.Type) },
	}),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Type", "string", corev1.Secret{}.SwaggerDoc()["type"]),
		apis.Column("Data", "string", corev1.Secret{}.SwaggerDoc()["data"]),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(s *corev1.Secret, now time.Time) []any {
		return []any{s.Name, string(s.Type), int64(len(s.Data)), apis.AgeOf(s, now)}
	}),
}

// defaultSecret also folds the write-only stringData into data.
func defaultSecret(s *corev1.Secret) {
	if s.Type == "" {
		s.Type = corev1.SecretTypeOpaque
	}
	if len(s.StringData) == 0 {
		return
	}
	if s.Data == nil {
		s.Data = make(map[string][]byte, len(s.StringData))
	}
	for k, v := range s.StringData {
		s.Data[k] = []byte(v)
	}
	s.StringData = nil
}

// secretWarnings: a certificate that servers cannot use is kept.
func secretWarnings(s, _ *corev1.Secret) []string {
	if s.Type != corev1.SecretTypeTLS {
		return nil
	}
	if _, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey]); err != nil {
		return []string{err.Error()}
	}
	return nil
}

// keepSecretType serves clients that do not know the type they read.
func keepSecretType(s, old *corev1.Secret) {
	if s.Type == "" {
		s.Type = old.Type
	}
}
