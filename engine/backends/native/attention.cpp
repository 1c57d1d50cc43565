// Attention of new tokens over KV slots, for x86 processors with AVX-512. It knows tokens, slots and
// heads, and nothing of requests.
//
// The result of a query depends, in every bit, on its own numbers and those of the positions that it
// sees, and on nothing else: each score is one chain of additions over the head's dimensions, each
// output one chain over the positions, and what is masked adds an exact zero.
//
// Keys are kept in blocks of 16 positions with the dimension outside, [slot, head, block, dim, 16],
// so that 16 scores grow side by side; values as [slot, head, position, dim].

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

extern "C" int tandem_avx512_supported() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

#include "vector.h"

namespace {

constexpr int MAX_QUERIES = 6;
constexpr int MAX_HEAD_DIM = 256;

struct Model {
    int32_t group_size, num_kv_heads, head_dim, max_positions, sliding_window;
    float scale;
};

struct Token {
    int32_t slot, position;
};

// Some queries of one row: query i is of token i / group_size, head group member i % group_size.
struct Task {
    int32_t slot, first_token, start_position, first_query, num_queries;
};

// For x <= 0, to about one unit in the last place; exactly 0 below -104.
inline __m512 exp_of(__m512 x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-110.0f));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), r);
    __m512 y = _mm512_set1_ps(1.38888889e-3f);
    for (float c : {8.33333333e-3f, 4.16666667e-2f, 1.66666667e-1f, 0.5f, 1.0f, 1.0f})
        y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(c));
    return _mm512_scalef_ps(y, n);
}

template <typename T>
struct Cache {
    const Model& model;
    T* keys;
    T* values;

    int num_blocks() const { return model.max_positions / LANES; }
    T* key_block(int slot, int head, int block) const {
        int64_t index = (int64_t(slot) * model.num_kv_heads + head) * num_blocks() + block;
        return keys + index * model.head_dim * LANES;
    }
    T* value(int slot, int head, int position) const {
        int64_t index = (int64_t(slot) * model.num_kv_heads + head) * model.max_positions + position;
        return values + index * model.head_dim;
    }
    void write(Token token, const T* key, const T* value_) const {
        for (int head = 0; head < model.num_kv_heads; ++head) {
            T* block = key_block(token.slot, head, token.position / LANES);
            for (int dim = 0; dim < model.head_dim; ++dim)
                block[dim * LANES + token.position % LANES] = key[head * model.head_dim + dim];
            std::memcpy(value(token.slot, head, token.position), value_ + head * model.head_dim,
                        sizeof(T) * model.head_dim);
        }
    }
};

// The scores of 16 * NB positions for each of N queries.
template <typename T, int N, int NB>
inline void score(const float (*queries)[MAX_HEAD_DIM], const T* block, int head_dim,
                  __m512 (*scores)[2]) {
    for (int i = 0; i < N; ++i)
        for (int b = 0; b < NB; ++b) scores[i][b] = _mm512_setzero_ps();
    for (int dim = 0; dim < head_dim; ++dim) {
        __m512 keys[NB];
        for (int b = 0; b < NB; ++b) keys[b] = load(block + (b * head_dim + dim) * LANES);
        for (int i = 0; i < N; ++i) {
            __m512 query = _mm512_set1_ps(queries[i][dim]);
            for (int b = 0; b < NB; ++b)
                scores[i][b] = _mm512_fmadd_ps(query, keys[b], scores[i][b]);
        }
    }
}

// NX * 16 dimensions of the outputs of N queries.
template <typename T, int N, int NX>
inline void mix(const float* weights, int stride, const T* values, int begin, int end,
                int head_dim, __m512 (*outputs)[NX]) {
    for (int i = 0; i < N; ++i)
        for (int x = 0; x < NX; ++x) outputs[i][x] = _mm512_setzero_ps();
    for (int position = begin; position < end; ++position) {
        __m512 value[NX];
        for (int x = 0; x < NX; ++x) value[x] = load(values + position * head_dim + x * LANES);
        for (int i = 0; i < N; ++i) {
            __m512 weight = _mm512_set1_ps(weights[i * stride + position]);
            for (int x = 0; x < NX; ++x)
                outputs[i][x] = _mm512_fmadd_ps(weight, value[x], outputs[i][x]);
        }
    }
}

template <typename T>
struct Call {
    const Model& model;
    Cache<T> cache;
    const T* query;
    int64_t query_stride;
    T* output;

    template <int N>
    void run(const Task& task, int head) const {
        const int head_dim = model.head_dim, group_size = model.group_size;
        alignas(64) float queries[N][MAX_HEAD_DIM];
        int positions[N];
        int64_t heads[N], tokens[N];
        for (int i = 0; i < N; ++i) {
            int index = task.first_query + i;
            tokens[i] = task.first_token + index / group_size;
            heads[i] = int64_t(index % group_size * model.num_kv_heads + head) * head_dim;
            positions[i] = task.start_position + index / group_size;
            const T* source = query + tokens[i] * query_stride + heads[i];
            for (int dim = 0; dim < head_dim; dim += LANES)
                store(&queries[i][dim],
                      _mm512_mul_ps(load(source + dim), _mm512_set1_ps(model.scale)));
        }
        const int end = positions[N - 1] + 1, num_blocks = (end + LANES - 1) / LANES;
        const int first = model.sliding_window ? positions[0] - model.sliding_window + 1 : 0;
        const int first_block = first > 0 ? first / LANES : 0;
        const int stride = num_blocks * LANES;
        thread_local std::vector<float> scratch;
        if (scratch.size() < size_t(MAX_QUERIES) * stride) scratch.resize(MAX_QUERIES * stride);
        float* weights = scratch.data();
        __m512 largest[N], sum[N], scores[N][2];
        for (int i = 0; i < N; ++i)
            largest[i] = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
        for (int block = first_block; block < num_blocks; block += 2) {
            const int num = block + 1 < num_blocks ? 2 : 1;
            const T* keys = cache.key_block(task.slot, head, block);
            if (num == 2)
                score<T, N, 2>(queries, keys, head_dim, scores);
            else
                score<T, N, 1>(queries, keys, head_dim, scores);
            for (int i = 0; i < N; ++i)
                for (int b = 0; b < num; ++b) {
                    __m512 seen = masked(scores[i][b], (block + b) * LANES, positions[i]);
                    largest[i] = _mm512_max_ps(largest[i], seen);
                    store(weights + i * stride + (block + b) * LANES, seen);
                }
        }
        for (int i = 0; i < N; ++i) {
            __m512 most = _mm512_set1_ps(_mm512_reduce_max_ps(largest[i]));
            sum[i] = _mm512_setzero_ps();
            float* row = weights + i * stride;
            for (int block = first_block; block < num_blocks; ++block) {
                __m512 weight = exp_of(_mm512_sub_ps(load(row + block * LANES), most));
                sum[i] = _mm512_add_ps(sum[i], weight);
                store(row + block * LANES, weight);
            }
            sum[i] = _mm512_set1_ps(_mm512_reduce_add_ps(sum[i]));
        }
        const T* values = cache.value(task.slot, head, 0);
        int dim = 0;
        for (; dim + 4 * LANES <= head_dim; dim += 4 * LANES)
            finish<N, 4>(weights, stride, values, first_block * LANES, end, dim, sum, tokens, heads);
        for (; dim < head_dim; dim += LANES)
            finish<N, 1>(weights, stride, values, first_block * LANES, end, dim, sum, tokens, heads);
    }

    // -inf where the query at `position` does not look.
    __m512 masked(__m512 scores, int first_position, int position) const {
        const __m512i places = _mm512_add_epi32(
            _mm512_set1_epi32(first_position),
            _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
        __mmask16 seen = _mm512_cmple_epi32_mask(places, _mm512_set1_epi32(position));
        if (model.sliding_window)
            seen &= _mm512_cmpgt_epi32_mask(places,
                                            _mm512_set1_epi32(position - model.sliding_window));
        return _mm512_mask_mov_ps(_mm512_set1_ps(-std::numeric_limits<float>::infinity()), seen,
                                  scores);
    }

    template <int N, int NX>
    void finish(const float* weights, int stride, const T* values, int begin, int end, int dim,
                const __m512* sum, const int64_t* tokens, const int64_t* heads) const {
        __m512 outputs[N][NX];
        mix<T, N, NX>(weights, stride, values + dim, begin, end, model.head_dim, outputs);
        const int64_t token_size = int64_t(model.group_size) * model.num_kv_heads * model.head_dim;
        for (int i = 0; i < N; ++i)
            for (int x = 0; x < NX; ++x)
                store(output + tokens[i] * token_size + heads[i] + dim + x * LANES,
                      _mm512_div_ps(outputs[i][x], sum[i]));
    }

    void run_any(const Task& task, int head) const {
        switch (task.num_queries) {
            case 1: return run<1>(task, head);
            case 2: return run<2>(task, head);
            case 3: return run<3>(task, head);
            case 4: return run<4>(task, head);
            case 5: return run<5>(task, head);
            case 6: return run<6>(task, head);
        }
    }
};

template <typename T>
void attend(const Model& model, const T* query, int64_t query_stride, const T* key,
            int64_t key_stride, const T* value, int64_t value_stride, T* keys, T* values,
            const Token* tokens, int num_tokens, const Task* tasks, int num_tasks, T* output) {
    const Cache<T> cache{model, keys, values};
    const Call<T> call{model, cache, query, query_stride, output};
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int i = 0; i < num_tokens; ++i)
            cache.write(tokens[i], key + i * key_stride, value + i * value_stride);
#pragma omp for schedule(dynamic) collapse(2)
        for (int i = 0; i < num_tasks; ++i)
            for (int head = 0; head < model.num_kv_heads; ++head) call.run_any(tasks[i], head);
    }
}

}  // namespace

extern "C" void tandem_attend(const void* model, int is_bfloat16, const void* query,
                              int64_t query_stride, const void* key, int64_t key_stride,
                              const void* value, int64_t value_stride, void* keys, void* values,
                              const void* tokens, int num_tokens, const void* tasks,
                              int num_tasks, void* output) {
    const Model& shape = *static_cast<const Model*>(model);
    const Token* token = static_cast<const Token*>(tokens);
    const Task* task = static_cast<const Task*>(tasks);
    if (is_bfloat16)
        attend(shape, static_cast<const bfloat16*>(query), query_stride,
               static_cast<const bfloat16*>(key), key_stride, static_cast<const bfloat16*>(value),
               value_stride, static_cast<bfloat16*>(keys), static_cast<bfloat16*>(values), token,
               num_tokens, task, num_tasks, static_cast<bfloat16*>(output));
    else
        attend(shape, static_cast<const float*>(query), query_stride,
               static_cast<const float*>(key), key_stride, static_cast<const float*>(value),
               value_stride, static_cast<float*>(keys), static_cast<float*>(values), token,
               num_tokens, task, num_tasks, static_cast<float*>(output));
}
