// Instructions of groups, as the tests write them.
#pragma once
#include <algorithm>
#include <vector>
#include "../abi_group.h"

namespace testing {

inline GroupOperand in_row(uint32_t at, uint32_t type, const std::vector<int32_t>& strides) {
    GroupOperand operand{};
    operand.at = at;
    operand.type = type;
    std::copy(strides.begin(), strides.end(), operand.strides);
    return operand;
}

// One source, one result.
inline GroupInstruction instruction(uint32_t op, uint32_t flags, const std::vector<uint32_t>& extents, uint32_t outer_axes) {
    GroupInstruction in{};
    in.op = op;
    in.flags = flags;
    in.axes = static_cast<uint32_t>(extents.size());
    in.outer_axes = outer_axes;
    in.outer = in.inner = 1;
    for (uint32_t axis = 0; axis < in.axes; ++axis) {
        in.extents[axis] = extents[axis];
        (axis < outer_axes ? in.outer : in.inner) *= extents[axis];
    }
    in.sources = 1;
    in.results = 1;
    return in;
}

}  // namespace testing
