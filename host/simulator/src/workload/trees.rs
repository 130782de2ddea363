//! Shapes of binary trees.

use cellwright_cell_graph::Random;

use super::lengths::{LENGTH_MAX, Lengths};

/// Trees that a random treebank has, as many as BatchMaker's (section 7.1).
const TREEBANK: usize = 10_000;

/// A binary tree: the children of each internal node, children before their parents; leaves are counted from 0, internal nodes after them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tree {
    /// At least 1.
    pub leaves: u32,
    /// Of each internal node: one less than there are leaves.
    pub children: Vec<[u32; 2]>,
}

impl Tree {
    /// A tree whose levels are as full as can be.
    #[must_use]
    pub fn balanced(leaves: u32) -> Self {
        let mut level: Vec<u32> = (0..leaves).collect();
        let mut children = Vec::new();
        while level.len() > 1 {
            let mut above = Vec::with_capacity(level.len().div_ceil(2));
            let mut pairs = level.chunks_exact(2);
            for pair in &mut pairs {
                above.push(leaves + children.len() as u32);
                children.push([pair[0], pair[1]]);
            }
            above.extend_from_slice(pairs.remainder());
            level = above;
        }
        Self { leaves, children }
    }

    /// A tree in preorder: `B` an internal node, then its left and its right subtree; `L` a leaf.
    #[must_use]
    pub fn preorder(text: &str) -> Option<Self> {
        let leaves = u32::try_from(text.bytes().filter(|byte| *byte == b'L').count()).ok().filter(|leaves| *leaves <= LENGTH_MAX)?;
        // From the back, both subtrees of an internal node are on the stack when it comes.
        let (mut stack, mut children, mut leaf) = (Vec::new(), Vec::new(), leaves);
        for byte in text.bytes().rev() {
            let node = match byte {
                b'L' => {
                    leaf -= 1;
                    leaf
                }
                b'B' => {
                    let (left, right) = (stack.pop()?, stack.pop()?);
                    children.push([left, right]);
                    leaves + u32::try_from(children.len()).ok()? - 1
                }
                _ => return None,
            };
            stack.push(node);
        }
        (stack.len() == 1).then_some(Self { leaves, children })
    }

    /// A random one: half of all constituents have one word split off, as in right-branching language; the others are split anywhere. With
    /// that, and the lengths of [`Trees::treebank`], trees are as deep as those of the Stanford Sentiment Treebank.
    fn random(leaves: u32, random: &mut Random) -> Self {
        const ONE_SPLIT_OFF: f64 = 0.52;
        // Constituents still to be split, by first leaf and number; from the last, an internal node's number follows its children's.
        let mut tree = Self { leaves, children: Vec::new() };
        let mut open = vec![Open::Split(0, leaves)];
        let mut made = Vec::new();
        while let Some(next) = open.pop() {
            match next {
                Open::Split(first, 1) => made.push(first),
                Open::Split(first, count) => {
                    let left = if random.unit() <= ONE_SPLIT_OFF { 1 } else { 1 + random.below(count as usize - 1) as u32 };
                    open.extend([Open::Join, Open::Split(first + left, count - left), Open::Split(first, left)]);
                }
                Open::Join => {
                    if let (Some(right), Some(left)) = (made.pop(), made.pop()) {
                        made.push(leaves + tree.children.len() as u32);
                        tree.children.push([left, right]);
                    }
                }
            }
        }
        tree
    }

    /// Internal nodes on the longest path from a leaf to the root.
    #[must_use]
    pub fn depth(&self) -> u32 {
        let mut depth = vec![0_u32; self.leaves as usize];
        for [left, right] in &self.children {
            depth.push(1 + depth[*left as usize].max(depth[*right as usize]));
        }
        depth.last().copied().unwrap_or(0)
    }
}

enum Open {
    Split(u32, u32),
    Join,
}

/// Trees that requests have, each as likely as any other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trees(Vec<Tree>);

impl Trees {
    /// Random trees like those of the Stanford Sentiment Treebank: 19.2 leaves on average (standard deviation 9.2, 2 to 56), depth 9.9.
    #[must_use]
    pub fn treebank(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let leaves = Lengths::Lognormal { mu: 2.855, sigma: 0.47, max: 56 };
        Self((0..TREEBANK).map(|_| Tree::random(leaves.draw(&mut random).max(2), &mut random)).collect())
    }

    /// All the same: complete, if the number of leaves is a power of two.
    #[must_use]
    pub fn identical(leaves: u32) -> Self {
        Self(vec![Tree::balanced(leaves.clamp(1, LENGTH_MAX))])
    }

    /// Those; none if there is none.
    #[must_use]
    pub fn listed(trees: Vec<Tree>) -> Option<Self> {
        (!trees.is_empty()).then_some(Self(trees))
    }

    /// At least one.
    pub(super) fn shapes(&self) -> &[Tree] {
        &self.0
    }

    /// Mean number of leaves and mean depth.
    #[must_use]
    pub fn means(&self) -> (f64, f64) {
        let mean = |of: fn(&Tree) -> u32| self.0.iter().map(|tree| f64::from(of(tree))).sum::<f64>() / self.0.len() as f64;
        (mean(|tree| tree.leaves), mean(Tree::depth))
    }
}
