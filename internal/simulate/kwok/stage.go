package kwok

// Stage says what happens to an object that is in a certain state: after a time,
// it is changed or deleted.
type Stage = Document[StageSpec]

// StageSpec of a Stage.
type StageSpec struct {
	ResourceRef ResourceRef `json:"resourceRef"`
	// Selector of the state. A stage without one is never reached.
	Selector *Selector `json:"selector,omitempty"`
	// Weight of the stage among those that an object could go on to.
	Weight             int         `json:"weight,omitempty"`
	WeightFrom         *Expression `json:"weightFrom,omitempty"`
	Delay              *Delay      `json:"delay,omitempty"`
	Next               *Next       `json:"next,omitempty"`
	Steps              []Step      `json:"steps,omitempty"`
	ImmediateNextStage *bool       `json:"immediateNextStage,omitempty"`
}

// ResourceRef names a kind. APIGroup is "v1" or a group with or without version.
type ResourceRef struct {
	APIGroup string `json:"apiGroup,omitempty"`
	Kind     string `json:"kind"`
}

// Selector matches objects that meet all of it.
type Selector struct {
	MatchLabels      map[string]string `json:"matchLabels,omitempty"`
	MatchAnnotations map[string]string `json:"matchAnnotations,omitempty"`
	MatchExpressions []Requirement     `json:"matchExpressions,omitempty"`
}

// Requirement is a condition in CEL or in jq. Key, Operator and Values beside
// them are the older way to write JQ.
type Requirement struct {
	CEL      *Program    `json:"cel,omitempty"`
	JQ       *JQSelector `json:"jq,omitempty"`
	Key      string      `json:"key,omitempty"`
	Operator string      `json:"operator,omitempty"`
	Values   []string    `json:"values,omitempty"`
}

// JQSelector compares what a jq expression gives. Operators are In, NotIn,
// Exists and DoesNotExist.
type JQSelector struct {
	Key      string   `json:"key,omitempty"`
	Operator string   `json:"operator,omitempty"`
	Values   []string `json:"values,omitempty"`
}

// Program is the text of one expression.
type Program struct {
	Expression string `json:"expression,omitempty"`
}

// Expression is where a value comes from. ExpressionFrom is the older way to
// write JQ.
type Expression struct {
	CEL            *Program `json:"cel,omitempty"`
	JQ             *Program `json:"jq,omitempty"`
	ExpressionFrom string   `json:"expressionFrom,omitempty"`
}

// Delay is the time before a stage takes effect. With a jitter it is drawn
// between the duration and the jitter duration.
type Delay struct {
	DurationMilliseconds       *int64      `json:"durationMilliseconds,omitempty"`
	DurationFrom               *Expression `json:"durationFrom,omitempty"`
	JitterDurationMilliseconds *int64      `json:"jitterDurationMilliseconds,omitempty"`
	JitterDurationFrom         *Expression `json:"jitterDurationFrom,omitempty"`
}

// Next is what happens. It is the older way to write Steps.
type Next struct {
	Event             *Event         `json:"event,omitempty"`
	Finalizers        *Finalizers    `json:"finalizers,omitempty"`
	Delete            bool           `json:"delete,omitempty"`
	Patches           []Patch        `json:"patches,omitempty"`
	StatusTemplate    string         `json:"statusTemplate,omitempty"`
	StatusSubresource *string        `json:"statusSubresource,omitempty"`
	StatusPatchAs     *Impersonation `json:"statusPatchAs,omitempty"`
}

// Step is one thing that happens; one of its fields is set.
type Step struct {
	Patch      *Patch      `json:"patch,omitempty"`
	Event      *Event      `json:"event,omitempty"`
	Finalizers *Finalizers `json:"finalizers,omitempty"`
	Delete     bool        `json:"delete,omitempty"`
	Apply      *Apply      `json:"apply,omitempty"`
}

// Patch is a template of YAML below the field Root. Type is json, merge,
// strategic or apply.
type Patch struct {
	Subresource   string         `json:"subresource,omitempty"`
	Root          string         `json:"root,omitempty"`
	Template      string         `json:"template,omitempty"`
	Type          *string        `json:"type,omitempty"`
	Impersonation *Impersonation `json:"impersonation,omitempty"`
}

// Apply is a template of a whole object.
type Apply struct {
	Template      string         `json:"template,omitempty"`
	Subresource   string         `json:"subresource,omitempty"`
	Type          *string        `json:"type,omitempty"`
	Impersonation *Impersonation `json:"impersonation,omitempty"`
}

// Impersonation names who makes a change.
type Impersonation struct {
	Username string `json:"username"`
}

// Finalizers says how those of an object change.
type Finalizers struct {
	Add    []Finalizer `json:"add,omitempty"`
	Remove []Finalizer `json:"remove,omitempty"`
	Empty  bool        `json:"empty,omitempty"`
}

// Finalizer by its name.
type Finalizer struct {
	Value string `json:"value,omitempty"`
}

// Event about the object.
type Event struct {
	Type    string `json:"type,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}
