package podcert

import (
	"context"
	"encoding/pem"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// projection is how far one source has come. Manager.mu guards it; only the one
// worker that holds the source in the queue writes.
type projection struct {
	credential *credential // what the pod has; nil until the first is issued
	asked      *asked      // the request under way
	end        error       // the signer's last word
	denied     bool        // by which end is set
	late, dead bool        // said in events
}

type credential struct {
	key, chain []byte
	renewAt    time.Time
	notAfter   time.Time
}

type asked struct {
	name string // of the PodCertificateRequest
	key  []byte
}

// reconcile brings one source a step on. It returns when to look again though
// nothing happens; 0 for never.
func (m *Manager) reconcile(ctx context.Context, s source) (after time.Duration, err error) {
	pod, spec := m.find(s)
	if spec == nil {
		return 0, nil
	}
	p := m.read(s)
	switch {
	case p.end != nil:
		return 0, nil
	case p.asked != nil:
		return m.answered(s, p, pod)
	case p.credential != nil && m.c.Clock.Now().Before(p.credential.renewAt):
		return p.credential.renewAt.Sub(m.c.Clock.Now()), nil
	}
	m.remind(&p, pod)
	if p.asked, err = m.request(ctx, pod, spec); err != nil {
		return 0, err
	}
	m.write(s, p)
	return m.answered(s, p, pod)
}

func (m *Manager) read(s source) projection {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.state[s]; p != nil {
		return *p
	}
	return projection{}
}

// write keeps the state of a source whose pod is still there.
func (m *Manager) write(s source, p projection) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pods[s.pod] != nil {
		m.state[s] = &p
	}
}

// answered looks what has become of the request under way.
func (m *Manager) answered(s source, p projection, pod *corev1.Pod) (after time.Duration, err error) {
	r, ok := m.requests.Cached(pod.Namespace, p.asked.name)
	if !ok {
		name := p.asked.name
		p.asked = nil
		m.write(s, p)
		return 0, fmt.Errorf("PodCertificateRequest %s/%s was deleted", pod.Namespace, name)
	}
	c := final(r)
	if c == nil {
		after = m.remind(&p, pod)
		m.write(s, p)
		return after, nil
	}
	id := r.Namespace + "/" + r.Name
	switch {
	case c.Type == certificatesv1.PodCertificateRequestConditionTypeDenied:
		p = projection{denied: true, end: fmt.Errorf("PodCertificateRequest was permanently denied: reason=%q message=%q", c.Reason, c.Message)}
		m.c.Recorder.Eventf(pod, corev1.EventTypeWarning, c.Type, "PodCertificateRequest %s was denied, reason=%q, message=%q", id, c.Reason, c.Message)
	case c.Type == certificatesv1.PodCertificateRequestConditionTypeFailed:
		p = projection{end: fmt.Errorf("PodCertificateRequest was permanently failed: reason=%q message=%q", c.Reason, c.Message)}
		m.c.Recorder.Eventf(pod, corev1.EventTypeWarning, c.Type, "PodCertificateRequest %s failed, reason=%q, message=%q", id, c.Reason, c.Message)
	default:
		p = projection{credential: m.issued(r, p.asked.key)}
		after = max(p.credential.renewAt.Sub(m.c.Clock.Now()), time.Second) // it may be due at once
	}
	m.write(s, p)
	m.c.Changed(s.pod)
	return after, nil
}

func (m *Manager) issued(r *certificatesv1.PodCertificateRequest, key []byte) *credential {
	c := &credential{key: key, chain: onlyCertificates([]byte(r.Status.CertificateChain))}
	if t := r.Status.NotAfter; t != nil {
		c.notAfter = t.Time
	}
	if t := r.Status.BeginRefreshAt; t != nil {
		c.renewAt = t.Add(m.c.Jitter())
	}
	return c
}

// remind says, once each, that a certificate's renewal is late and that it has
// expired. It returns the time until it has more to say.
func (m *Manager) remind(p *projection, pod *corev1.Pod) time.Duration {
	if p.credential == nil {
		return 0
	}
	now := m.c.Clock.Now()
	late := p.credential.renewAt.Add(overdue)
	if now.After(late) && !p.late {
		p.late = true
		m.c.Recorder.Event(pod, corev1.EventTypeWarning, "CertificateOverdueForRefresh", "PodCertificate refresh overdue")
	}
	if now.After(p.credential.notAfter) && !p.dead {
		p.dead = true
		m.c.Recorder.Event(pod, corev1.EventTypeWarning, "CertificateExpired", "PodCertificate expired")
	}
	switch {
	case !p.late:
		return late.Sub(now) + time.Second
	case !p.dead:
		return p.credential.notAfter.Sub(now) + time.Second
	}
	return 0
}

func final(r *certificatesv1.PodCertificateRequest) *metav1.Condition {
	for i := range r.Status.Conditions {
		switch c := &r.Status.Conditions[i]; c.Type {
		case certificatesv1.PodCertificateRequestConditionTypeDenied, certificatesv1.PodCertificateRequestConditionTypeFailed, certificatesv1.PodCertificateRequestConditionTypeIssued:
			return c
		}
	}
	return nil
}

// onlyCertificates drops headers of PEM blocks and what stands between them.
func onlyCertificates(text []byte) []byte {
	var out []byte
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes})...)
	}
	return out
}
