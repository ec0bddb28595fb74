package proatest

import (
	"testing"

	"k8s.io/client-go/rest"
)

// BenchmarkStart is a server from nothing to its first answer, and its end.
func BenchmarkStart(b *testing.B) {
	for _, bench := range []struct {
		name    string
		options Options
	}{
		{"alone", Options{}},
		{"with controllers and scheduler", Options{Controllers: []string{"*"}, Scheduler: true}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			for b.Loop() {
				access, stop, err := start(b.Context(), bench.options)
				if err != nil {
					b.Fatal(err)
				}
				ask(b, access)
				b.StopTimer()
				if err := stop(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

func ask(b *testing.B, access *rest.Config) {
	client, err := rest.HTTPClientFor(access)
	if err != nil {
		b.Fatal(err)
	}
	answer, err := client.Get(access.Host + "/readyz")
	if err != nil {
		b.Fatal(err)
	}
	answer.Body.Close()
	client.CloseIdleConnections()
}
