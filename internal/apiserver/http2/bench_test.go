package http2

import (
	"bytes"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"syscall"
	"testing"
)

// cpu is what this process has used, in microseconds: the client's part included,
// which is the same whoever serves it.
func cpu(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Sec+u.Stime.Sec)*1e6 + float64(u.Utime.Usec+u.Stime.Usec)
}

func BenchmarkAnswers(b *testing.B) {
	for _, body := range []struct {
		name string
		size int
	}{{"6 KiB", 6 << 10}, {"8 MiB", 8 << 20}} {
		for _, who := range []string{"own", "net http"} {
			b.Run(body.name+" by "+who, func(b *testing.B) {
				chunk := bytes.Repeat([]byte("x"), min(body.size, 256<<10))
				h := func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Length", strconv.Itoa(body.size))
					for n := 0; n < body.size; n += len(chunk) {
						w.Write(chunk)
					}
				}
				var s *httptest.Server
				if who == "own" {
					s = serving(b, Config{}, h)
				} else {
					s = httptest.NewUnstartedServer(http.HandlerFunc(h))
					s.EnableHTTP2 = true
					s.TLS = &tls.Config{DynamicRecordSizingDisabled: true}
					s.StartTLS()
					defer s.Close()
				}
				c := client(b, s)
				before := 0.0
				for n := range b.N + 1 {
					resp, err := c.Get(s.URL)
					if err != nil {
						b.Fatal(err)
					}
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					if n == 0 {
						before = cpu(b)
						b.ReportAllocs()
						b.ResetTimer()
					}
				}
				b.ReportMetric((cpu(b)-before)/float64(b.N), "cpu-us/op")
			})
		}
	}
}
