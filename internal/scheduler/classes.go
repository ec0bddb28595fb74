package scheduler

import "proa/internal/scheduler/framework"

// classes number what a framework.Classifier tells nodes apart by, for one batch.
type classes struct {
	name    func(to []byte, n *framework.NodeInfo) []byte // nil: all nodes are of one class
	numbers map[string]int32
	buffer  []byte
}

func (c *classes) number(n *framework.NodeInfo) int32 {
	if c.name == nil {
		return 0
	}
	c.buffer = c.name(c.buffer[:0], n)
	number, known := c.numbers[string(c.buffer)]
	if !known {
		if c.numbers == nil {
			c.numbers = map[string]int32{}
		}
		number = int32(len(c.numbers))
		c.numbers[string(c.buffer)] = number
	}
	return number
}
