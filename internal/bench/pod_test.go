package bench

import (
	"testing"
	"time"
)

func TestAPodIsOfTheUsualSize(t *testing.T) {
	if n := len(podBody("proa-bench", "list-000001")); n < 2600 || n > 2800 {
		t.Errorf("a pod has %d bytes of JSON, want 2.7 KB", n)
	}
}

func TestTheTimeInAPodIsReplacedInPlace(t *testing.T) {
	body := podBody("ns", "a")
	size, at := len(body), time.Unix(1_700_000_000, 123456789)
	if !setStamp(body, at) || len(body) != size {
		t.Fatalf("%d bytes became %d", size, len(body))
	}
	if got, ok := stampAfter(body, stampMark); !ok || !got.Equal(at) {
		t.Errorf("the time is %v, want %v", got, at)
	}
	if setStamp([]byte(`{"metadata":{}}`), at) {
		t.Error("a time was set where there is none")
	}
}
