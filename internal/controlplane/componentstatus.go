package controlplane

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis"
)

const (
	healthTimeout = 20 * time.Second
	storeName     = "etcd-0"
)

// ComponentCheck returns nil while a component is well.
type ComponentCheck func(ctx context.Context) error

// DaemonChecks ask the daemons of upstream's names on this host at their own ports.
func DaemonChecks() map[string]ComponentCheck {
	c := &http.Client{Timeout: healthTimeout, Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // they sign their certificates themselves, and nothing is told to them
		DisableKeepAlives: true,
	}}
	return map[string]ComponentCheck{
		"controller-manager": askHealth(c, "https://127.0.0.1:10257/healthz"),
		"scheduler":          askHealth(c, "https://127.0.0.1:10259/healthz"),
	}
}

func askHealth(c *http.Client, url string) ComponentCheck {
	return func(ctx context.Context) error {
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		a, err := c.Do(q)
		if err != nil {
			return err
		}
		defer a.Body.Close()
		if a.StatusCode >= http.StatusBadRequest {
			return fmt.Errorf("HTTP probe failed with statuscode: %d", a.StatusCode)
		}
		return nil
	}
}

// componentStatuses is what the componentstatuses resource reads. Its components
// are asked when it is.
type componentStatuses struct{ cp *ControlPlane }

func (s componentStatuses) checks() map[string]ComponentCheck {
	all := map[string]ComponentCheck{storeName: s.cp.checkStore}
	for name, check := range s.cp.Components {
		all[name] = check
	}
	return all
}

// checkStore asks the store's engine where it can be out of reach.
func (cp *ControlPlane) checkStore(ctx context.Context) error {
	for _, check := range cp.storeChecks {
		if err := check.Check(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Get asks one component.
func (s componentStatuses) Get(_, name string) (apis.Object, error) {
	check, ok := s.checks()[name]
	if !ok {
		return nil, apierrors.NewNotFound(corev1.Resource("componentstatus"), name)
	}
	return statusOf(name, check), nil
}

// List asks all components at once.
func (s componentStatuses) List(string) []apis.Object {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		found []apis.Object
	)
	for name, check := range s.checks() {
		wg.Go(func() {
			status := statusOf(name, check)
			mu.Lock()
			defer mu.Unlock()
			found = append(found, status)
		})
	}
	wg.Wait()
	return found
}

func statusOf(name string, check ComponentCheck) *corev1.ComponentStatus {
	ctx, cancel := context.WithTimeout(context.Background(), healthTimeout)
	defer cancel()
	condition := corev1.ComponentCondition{Type: corev1.ComponentHealthy, Status: corev1.ConditionTrue, Message: "ok"}
	if err := check(ctx); err != nil {
		condition.Status, condition.Message = corev1.ConditionFalse, err.Error()
		if name == storeName {
			condition.Message, condition.Error = "", err.Error()
		}
	}
	return &corev1.ComponentStatus{ObjectMeta: metav1.ObjectMeta{Name: name}, Conditions: []corev1.ComponentCondition{condition}}
}
