// Kernels of tests/gpu/nsight.py. The one with NCCL's name moves memory on a few multiprocessors, as
// NCCL's do, and so competes with others for them and for the memory; it has no other GPU.

extern "C" __global__ void matmul(float *to, int rounds) {
  float a = threadIdx.x, b = blockIdx.x, c = 1.0f, d = 2.0f;
  for (int i = 0; i < rounds; ++i) {
    a = a * 1.0001f + b;
    b = b * 0.9999f + c;
    c = c * 1.0002f + d;
    d = d * 0.9998f + a;
  }
  to[blockIdx.x * blockDim.x + threadIdx.x] = a + b + c + d;
}

static __device__ void add(float4 *to, const float4 *from, long num) {
  for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < num; i += gridDim.x * (long)blockDim.x) {
    float4 x = from[i];
    x.x += 1.0f;
    to[i] = x;
  }
}

extern "C" __global__ void elementwise(float4 *to, const float4 *from, long num) { add(to, from, num); }

extern "C" __global__ void ncclDevKernel_AllReduce_Sum_f32_RING_LL(float4 *to, const float4 *from, long num) {
  add(to, from, num);
}
