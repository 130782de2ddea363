// Products whose sums are all written down.
#include "product.cuh"

extern "C" __global__ void __launch_bounds__(128) product_f32_16(const __grid_constant__ ProductArguments a) {
    product::in_f32<16>(a, product::LeaveRows{a, 16});
}
KERNEL(product_f32_16, ProductArguments)
extern "C" __global__ void __launch_bounds__(128) product_f32_64(const __grid_constant__ ProductArguments a) {
    product::in_f32<64>(a, product::LeaveRows{a, 64});
}
KERNEL(product_f32_64, ProductArguments)
extern "C" __global__ void __launch_bounds__(128) product_f32_128(const __grid_constant__ ProductArguments a) {
    product::in_f32<128>(a, product::LeaveRows{a, 128});
}
KERNEL(product_f32_128, ProductArguments)
extern "C" __global__ void __launch_bounds__(128) product_tf32_16(const __grid_constant__ ProductArguments a) {
    product::in_tensor<product::Tf32, 16>(a, product::LeaveRows{a, 16});
}
KERNEL(product_tf32_16, ProductArguments)
extern "C" __global__ void __launch_bounds__(128) product_tf32_64(const __grid_constant__ ProductArguments a) {
    product::in_tensor<product::Tf32, 64>(a, product::LeaveRows{a, 64});
}
KERNEL(product_tf32_64, ProductArguments)
extern "C" __global__ void __launch_bounds__(128) product_tf32_128(const __grid_constant__ ProductArguments a) {
    product::in_tensor<product::Tf32, 128>(a, product::LeaveRows{a, 128});
}
KERNEL(product_tf32_128, ProductArguments)
extern "C" __global__ void __launch_bounds__(128) product_bf16_16(const __grid_constant__ ProductArguments a) {
    product::in_tensor<product::Bf16, 16>(a, product::LeaveRows{a, 16});
}
KERNEL(product_bf16_16, ProductArguments)
extern "C" __global__ void __launch_bounds__(128) product_bf16_64(const __grid_constant__ ProductArguments a) {
    product::in_tensor<product::Bf16, 64>(a, product::LeaveRows{a, 64});
}
KERNEL(product_bf16_64, ProductArguments)
extern "C" __global__ void __launch_bounds__(128) product_bf16_128(const __grid_constant__ ProductArguments a) {
    product::in_tensor<product::Bf16, 128>(a, product::LeaveRows{a, 128});
}
KERNEL(product_bf16_128, ProductArguments)
extern "C" __global__ void __launch_bounds__(128) product_f16_16(const __grid_constant__ ProductArguments a) {
    product::in_tensor<product::F16, 16>(a, product::LeaveRows{a, 16});
}
KERNEL(product_f16_16, ProductArguments)
extern "C" __global__ void __launch_bounds__(128) product_f16_64(const __grid_constant__ ProductArguments a) {
    product::in_tensor<product::F16, 64>(a, product::LeaveRows{a, 64});
}
KERNEL(product_f16_64, ProductArguments)
extern "C" __global__ void __launch_bounds__(128) product_f16_128(const __grid_constant__ ProductArguments a) {
    product::in_tensor<product::F16, 128>(a, product::LeaveRows{a, 128});
}
KERNEL(product_f16_128, ProductArguments)
