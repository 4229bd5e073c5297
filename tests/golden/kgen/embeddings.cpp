// embedding_c9fed93de557: s * 96 elements, grid 1
// size0: int64 s
// size1: int64 s * 96
// checks positions in 0 .. 32
[[gnu::noinline]] static void embedding_c9fed93de557_part(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    const float* __restrict__ in0 = static_cast<const float*>(buffers[0]);
    const int64_t* __restrict__ in1 = static_cast<const int64_t*>(buffers[1]);
    float* __restrict__ out0 = static_cast<float*>(buffers[2]);
    const int64_t size0 = parameters[0];
    const int64_t size1 = parameters[1];
    (void)buffers, (void)parameters, (void)status, (void)threads;
    #pragma omp for schedule(static) nowait
    for (int64_t i1 = 0; i1 < size0; ++i1) {
        const int64_t p0 = in1[i1];
        if (!(0 <= p0 && p0 < 32)) report(status, 1, i1, p0);
        const int64_t p1 = p0 * 96;
        const bool v0 = p0 <= 31;
        const bool v1 = 0 <= p0;
        const bool v2 = v0 & v1;
        const int64_t p2 = i1 * 96;
        #pragma omp simd
        for (int64_t i2 = 0; i2 < 96; ++i2) {
            const float v3 = v2 ? in0[p1 + i2] : 0.0f;
            out0[p2 + i2] = v3;
        }
    }
}
extern "C" void embedding_c9fed93de557(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    if (parameters[1] < 16384) threads = 1;
    if (threads == 1) return embedding_c9fed93de557_part(buffers, parameters, status, threads);
    #pragma omp parallel num_threads(threads)
    embedding_c9fed93de557_part(buffers, parameters, status, threads);
}

// add_a9bdbbf6ecb1: b * s * 96 elements, grid 1
// size0: int64 s
// size1: int64 s * 96
// size2: int64 b
// size3: int64 b * s * 192
// checks ids in 0 .. 50
[[gnu::noinline]] static void add_a9bdbbf6ecb1_part(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    const float* __restrict__ in0 = static_cast<const float*>(buffers[0]);
    const int64_t* __restrict__ in1 = static_cast<const int64_t*>(buffers[1]);
    const float* __restrict__ in2 = static_cast<const float*>(buffers[2]);
    const float* __restrict__ in3 = static_cast<const float*>(buffers[3]);
    const float* __restrict__ in4 = static_cast<const float*>(buffers[4]);
    float* __restrict__ out0 = static_cast<float*>(buffers[5]);
    const int64_t size0 = parameters[0];
    const int64_t size1 = parameters[1];
    const int64_t size2 = parameters[2];
    const int64_t size3 = parameters[3];
    (void)buffers, (void)parameters, (void)status, (void)threads;
    #pragma omp for collapse(2) schedule(static) nowait
    for (int64_t i0 = 0; i0 < size2; ++i0)
    for (int64_t i1 = 0; i1 < size0; ++i1) {
        const int64_t p0 = size0 * i0;
        const int64_t p1 = p0 + i1;
        const int64_t p2 = in1[p1];
        if (!(0 <= p2 && p2 < 50)) report(status, 1, p1, p2);
        const int64_t p3 = p2 * 96;
        const bool v0 = p2 <= 49;
        const bool v1 = 0 <= p2;
        const bool v2 = v0 & v1;
        const int64_t p4 = i1 * 96;
        float* const row0 = scratch<float, 0>(96);
        float sum0 = 0.0f;
        int64_t strip0 = 0;
        if (strip0 + 32 <= 96) {
            float sum0_lanes[32];
            for (int64_t lane = 0; lane < 32; ++lane) sum0_lanes[lane] = 0.0f;
            for (; strip0 + 32 <= 96; strip0 += 32)
            #pragma omp simd
            for (int64_t i2 = strip0; i2 < strip0 + 32; ++i2) {
                const float v3 = v2 ? in0[p3 + i2] : 0.0f;
                const float v4 = in2[p4 + i2];
                const float v5 = v3 + v4;
                row0[i2] = v5;
                sum0_lanes[i2 - strip0] = sum0_lanes[i2 - strip0] + v5;
            }
            sum0 = sum0 + join_lanes<32>(sum0_lanes, Add());
        }
        const float v6 = sum0 / 96.0f;
        float sum1 = 0.0f;
        int64_t strip1 = 0;
        if (strip1 + 32 <= 96) {
            float sum1_lanes[32];
            for (int64_t lane = 0; lane < 32; ++lane) sum1_lanes[lane] = 0.0f;
            for (; strip1 + 32 <= 96; strip1 += 32)
            #pragma omp simd
            for (int64_t i2 = strip1; i2 < strip1 + 32; ++i2) {
                const float v7 = row0[i2] - v6;
                sum1_lanes[i2 - strip1] = sum1_lanes[i2 - strip1] + v7 * v7;
            }
            sum1 = sum1 + join_lanes<32>(sum1_lanes, Add());
        }
        const float v10 = sum1 / 96.0f;
        const float v11 = v10 + 1e-12f;
        const float v12 = reciprocal_sqrt(v11);
        const int64_t p5 = size1 * i0;
        const int64_t p6 = p4 + p5;
        #pragma omp simd
        for (int64_t i2 = 0; i2 < 96; ++i2) {
            const float v8 = in3[i2];
            const float v9 = row0[i2] - v6;
            const float v13 = in4[i2];
            out0[p6 + i2] = v8 * (v9 * v12) + v13;
        }
    }
}
extern "C" void add_a9bdbbf6ecb1(void* const* buffers, const int64_t* parameters, int64_t* status, int64_t threads) {
    if (parameters[3] < 16384) threads = 1;
    if (threads == 1) return add_a9bdbbf6ecb1_part(buffers, parameters, status, threads);
    #pragma omp parallel num_threads(threads)
    add_a9bdbbf6ecb1_part(buffers, parameters, status, threads);
}
