//! A binary tree: tokens at the leaves, children before parents, the root last.

/// A leaf or an internal node, each numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Child {
    Leaf(u32),
    Internal(u32),
}

/// A tree; or, while it is built, several.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) tokens: Vec<i64>,
    /// Of each internal node, the left and the right child.
    pub(crate) children: Vec<(Child, Child)>,
}

impl Shape {
    pub(crate) fn leaf(&mut self, token: i64) -> Child {
        self.tokens.push(token);
        Child::Leaf(number(self.tokens.len() - 1))
    }

    pub(crate) fn join(&mut self, left: Child, right: Child) -> Child {
        self.children.push((left, right));
        Child::Internal(number(self.children.len() - 1))
    }
}

fn number(index: usize) -> u32 {
    u32::try_from(index).expect("leaves are bounded far below 2³²")
}
