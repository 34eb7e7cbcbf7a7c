/* SPDX-License-Identifier: Apache-2.0 */
#include "layer_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engram_row_math.h"
#include "engram_segment.h"

#define BLOCK	   32
#define TABLE_ROWS 5003
#define ONE	   127 /* the ue8m0 of 1.0 */

static uint64_t state;

static uint64_t next(void)
{
	/* splitmix64 */
	uint64_t z = state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

/* -1 to 1 */
static float fraction(void)
{
	return (float)((int64_t)(next() >> 40) - (1 << 23)) / (1 << 23);
}

/* Magnitudes below 2, a sign. */
static uint8_t code(void)
{
	uint64_t bits = next();

	return (uint8_t)((bits & 0x80) | (bits >> 8) % 0x40);
}

static void *need(size_t bytes)
{
	void *p = malloc(bytes + 1);

	if (!p) {
		fprintf(stderr, "out of memory\n");
		exit(1);
	}
	return p;
}

static uint32_t blocks(uint32_t n)
{
	return (n + BLOCK - 1) / BLOCK;
}

static void make_table(struct layer_model *m)
{
	uint32_t scales = blocks(m->s.row_dim);
	uint8_t *to;

	m->table_rows = TABLE_ROWS;
	m->record = m->s.row_dim + scales;
	to = m->records = need(TABLE_ROWS * m->record);
	for (int64_t row = 0; row < TABLE_ROWS; row++) {
		for (uint32_t i = 0; i < m->s.row_dim; i++)
			*to++ = code();
		for (uint32_t i = 0; i < scales; i++)
			*to++ = (uint8_t)(ONE - 1 + next() % 3);
	}
}

/* Of a size that keys and values are about 1. */
static void make_weight(struct layer_model *m)
{
	size_t count = (size_t)m->in * m->out;
	uint32_t cols = blocks(m->in);
	int down = (int)(log2(m->in) / 2);

	m->codes = need(count);
	m->scales = need((size_t)blocks(m->out) * cols);
	m->bf16 = need(count * sizeof(*m->bf16));
	m->weight = need(count * sizeof(*m->weight));
	for (size_t i = 0; i < (size_t)blocks(m->out) * cols; i++)
		m->scales[i] = (uint8_t)(ONE - down + (int)(next() % 3));
	for (size_t i = 0; i < count; i++) {
		size_t row = i / m->in, col = i % m->in;
		uint8_t scale = m->scales[row / BLOCK * cols + col / BLOCK];
		float value;

		m->codes[i] = code();
		value = engram_e4m3_to_float(m->codes[i]) *
			engram_ue8m0_to_float(scale);
		if (!m->s.fp8) /* more bits than fp8 has */
			value *= 1 + fraction() / 8;
		m->bf16[i] = engram_bf16_of_float(value);
		m->weight[i] =
			m->s.fp8 ? value : engram_bf16_to_float(m->bf16[i]);
	}
}

int64_t layer_model_share(const struct layer_model *m)
{
	return m->s.sequence_parallel
		       ? (m->s.tokens + m->s.size - 1) / m->s.size
		       : m->s.tokens;
}

int64_t layer_model_first(const struct layer_model *m, uint32_t rank)
{
	return m->s.sequence_parallel ? rank * layer_model_share(m) : 0;
}

void layer_model_open(struct layer_model *m, const struct layer_shape *shape)
{
	size_t gate = (size_t)shape->hc_mult * shape->dim;
	size_t tokens = (size_t)shape->tokens;

	*m = (struct layer_model){.s = *shape};
	m->in = shape->heads * shape->row_dim;
	m->out = (shape->hc_mult + 1) * shape->dim;
	m->hidden_tokens = layer_model_share(m) *
			   (shape->sequence_parallel ? shape->size : 1);
	state = m->in * 1000 + m->out;
	make_table(m);
	make_weight(m);
	m->q_weight = need(gate * sizeof(uint16_t));
	m->k_weight = need(gate * sizeof(uint16_t));
	for (size_t i = 0; i < gate; i++) {
		m->q_weight[i] = engram_bf16_of_float(1 + fraction() / 2);
		m->k_weight[i] = engram_bf16_of_float(1 + fraction() / 2);
	}
	m->ids = need(tokens * shape->heads * sizeof(int32_t));
	m->mask = need(tokens);
	m->hidden = need((size_t)m->hidden_tokens * gate * sizeof(uint16_t));
	m->want = need(tokens * gate * sizeof(double));
}

void layer_model_close(struct layer_model *m)
{
	free(m->records);
	free(m->codes);
	free(m->scales);
	free(m->bf16);
	free(m->weight);
	free(m->q_weight);
	free(m->k_weight);
	free(m->ids);
	free(m->mask);
	free(m->hidden);
	free(m->want);
}

struct engram_rows layer_model_rows(const struct layer_model *m,
				    const uint8_t *records)
{
	return (struct engram_rows){
		.codes = records,
		.scales = records + m->s.row_dim,
		.code_stride_bytes = (int64_t)m->record,
		.scale_stride_bytes = (int64_t)m->record,
		.row_end = m->table_rows,
		.dtype = ENGRAM_F8_E4M3,
		.scale_scheme = ENGRAM_SCALE_UE8M0_BLOCK,
		.dim = m->s.row_dim,
		.block_size = BLOCK,
	};
}

static double bf16(uint16_t bits)
{
	return (double)engram_bf16_to_float(bits);
}

/* The rows of one token, side by side; zeros for an id that is not there. */
static void look_up(const struct layer_model *m, int64_t token, double *to)
{
	for (uint32_t h = 0; h < m->s.heads; h++) {
		int32_t id = m->ids[token * m->s.heads + h];
		int there = id >= 0 && id < m->table_rows;
		const uint8_t *record =
			m->records + (there ? (size_t)id : 0) * m->record;

		for (uint32_t d = 0; d < m->s.row_dim; d++) {
			uint8_t scale = record[m->s.row_dim + d / BLOCK];

			*to++ = there ? (double)(engram_e4m3_to_float(
							 record[d]) *
						 engram_ue8m0_to_float(scale))
				      : 0;
		}
	}
}

static void project(const struct layer_model *m, const double *rows, double *kv)
{
	for (size_t o = 0; o < m->out; o++) {
		const float *weight = m->weight + o * m->in;
		double sum = 0;

		for (uint32_t i = 0; i < m->in; i++)
			sum += rows[i] * (double)weight[i];
		kv[o] = sum;
	}
}

static double gate_of(const struct layer_model *m, const uint16_t *hidden,
		      uint32_t copy, const double *key)
{
	const uint16_t *q = m->q_weight + copy * m->s.dim;
	const uint16_t *k = m->k_weight + copy * m->s.dim;
	double dot = 0, hh = 0, kk = 0, root;

	for (uint32_t d = 0; d < m->s.dim; d++) {
		double h = bf16(hidden[d]);

		dot += h * bf16(q[d]) * bf16(k[d]) * key[d];
		hh += h * h;
		kk += key[d] * key[d];
	}
	dot /= sqrt(hh / m->s.dim + (double)LAYER_EPS) *
	       sqrt(kk / m->s.dim + (double)LAYER_EPS) * sqrt(m->s.dim);
	root = sqrt(fmax(fabs(dot), (double)LAYER_CLAMP));
	return 1 / (1 + exp(dot < 0 ? root : -root));
}

static void want_token(struct layer_model *m, int64_t token, double *rows,
		       double *kv)
{
	uint32_t dim = m->s.dim;

	look_up(m, token, rows);
	project(m, rows, kv);
	for (uint32_t copy = 0; copy < m->s.hc_mult; copy++) {
		size_t at = ((size_t)token * m->s.hc_mult + copy) * dim;
		double gate = gate_of(m, m->hidden + at, copy, kv + copy * dim);

		if (!m->mask[token])
			gate = 0;
		for (uint32_t d = 0; d < dim; d++)
			m->want[at + d] = bf16(m->hidden[at + d]) +
					  gate * kv[m->s.hc_mult * dim + d];
	}
}

void layer_model_batch(struct layer_model *m, uint64_t seed)
{
	size_t hidden = (size_t)m->hidden_tokens * m->s.hc_mult * m->s.dim;
	double *rows = need(m->in * sizeof(*rows));
	double *kv = need(m->out * sizeof(*kv));

	state = seed;
	m->misses = 0;
	for (int64_t i = 0; i < m->s.tokens * m->s.heads; i++) {
		uint64_t kind = next() % 64;

		m->ids[i] = (int32_t)(next() % TABLE_ROWS);
		if (kind < 2)
			m->ids[i] = kind ? -1 : TABLE_ROWS;
		m->misses += kind < 2;
	}
	for (size_t i = 0; i < hidden; i++)
		m->hidden[i] = engram_bf16_of_float(2 * fraction());
	for (int64_t t = 0; t < m->s.tokens; t++) {
		m->mask[t] = next() % 5 != 0;
		want_token(m, t, rows, kv);
	}
	free(rows);
	free(kv);
}

int64_t layer_model_compare(const struct layer_model *m, uint32_t rank,
			    const uint16_t *got, struct layer_error *sum)
{
	size_t gate = (size_t)m->s.hc_mult * m->s.dim;
	int64_t first = layer_model_first(m, rank), changed = 0;

	for (int64_t i = 0; i < layer_model_share(m); i++) {
		int64_t token = first + i;
		const uint16_t *hidden = m->hidden + (size_t)token * gate;
		const double *want = m->want + (size_t)token * gate;
		int passes = token >= m->s.tokens || !m->mask[token];

		for (size_t d = 0; d < gate; d++, got++) {
			double h = bf16(hidden[d]), diff;

			if (passes) {
				changed += *got != hidden[d];
				continue;
			}
			diff = bf16(*got) - want[d];
			sum->diff += diff * diff;
			sum->total += want[d] * want[d];
			sum->effect += (want[d] - h) * (want[d] - h);
		}
	}
	return changed;
}
