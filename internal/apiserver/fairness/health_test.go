package fairness

import (
	"context"
	"errors"
	"runtime"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis/builtin"
	"proa/internal/apiserver/registry"
	"proa/internal/client"
	"proa/internal/store"
	"proa/internal/store/memory"
)

// readOnly is an API that refuses every new object.
type readOnly struct{ client.API }

func (readOnly) Create(context.Context, client.Ref, client.Object, metav1.CreateOptions) (client.Object, error) {
	return nil, errors.New("not now")
}

func TestHealthTellsWhatIsDone(t *testing.T) {
	catalogue := builtin.Catalogue()
	st, err := store.Open(t.Context(), store.Config{Engine: memory.New(), Codec: registry.NewCodec(catalogue)})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	r, err := registry.New(registry.Config{Store: st, Catalogue: catalogue})
	if err != nil {
		t.Fatal(err)
	}
	api := r.As(someone("system:apiserver", "system:masters"))
	f, err := New(Config{Store: st, API: readOnly{api}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	if f.Follows(ctx) == nil {
		t.Error("changes are followed before Run")
	}
	f.write(ctx)
	if f.Ensures(ctx) == nil {
		t.Error("objects are there that could not be made")
	}
	f.config.API = api
	go func() { ended <- f.Run(ctx) }()
	for f.Follows(ctx) != nil || f.Ensures(ctx) != nil {
		runtime.Gosched()
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
