SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public.answers (
    tenant text NOT NULL,
    "user" text NOT NULL,
    key text NOT NULL,
    fingerprint text NOT NULL,
    status integer NOT NULL,
    body bytea,
    created_us bigint NOT NULL
);
CREATE TABLE public.audit (
    id bigint NOT NULL,
    at_us bigint NOT NULL,
    tenant text NOT NULL,
    "user" text NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,
    outcome text NOT NULL,
    request_id text NOT NULL,
    details text NOT NULL
);
CREATE SEQUENCE public.audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.audit_id_seq OWNED BY public.audit.id;
CREATE TABLE public.catalog_revision (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.job_events (
    number bigint NOT NULL,
    job bigint NOT NULL,
    at_us bigint NOT NULL,
    state text NOT NULL,
    note text NOT NULL
);
CREATE SEQUENCE public.job_events_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.job_events_number_seq OWNED BY public.job_events.number;
CREATE TABLE public.jobs (
    number bigint NOT NULL,
    id text NOT NULL,
    tenant text NOT NULL,
    kind text NOT NULL,
    subject text NOT NULL,
    state text NOT NULL,
    progress double precision NOT NULL,
    attempts integer NOT NULL,
    owner text,
    created_by text NOT NULL,
    created_us bigint NOT NULL,
    started_us bigint,
    finished_us bigint,
    details text NOT NULL,
    result text,
    error text
);
CREATE SEQUENCE public.jobs_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.jobs_number_seq OWNED BY public.jobs.number;
CREATE TABLE public.leases (
    name text NOT NULL,
    holder text NOT NULL,
    fence bigint NOT NULL,
    renewals bigint NOT NULL,
    expires_us bigint NOT NULL,
    ttl_us bigint NOT NULL
);
CREATE TABLE public.links (
    digest text NOT NULL,
    tenant text NOT NULL,
    "user" text NOT NULL,
    made_with text NOT NULL,
    created_us bigint NOT NULL,
    expires_us bigint NOT NULL,
    used_us bigint
);
CREATE TABLE public.quotas (
    tenant text NOT NULL,
    "user" text NOT NULL,
    limits text NOT NULL
);
CREATE TABLE public.tenants (
    name text NOT NULL,
    enabled boolean NOT NULL,
    created_us bigint NOT NULL
);
CREATE TABLE public.tokens (
    id text NOT NULL,
    tenant text NOT NULL,
    "user" text NOT NULL,
    kind text NOT NULL,
    home text NOT NULL,
    made_with text NOT NULL,
    label text NOT NULL,
    digest text NOT NULL,
    created_us bigint NOT NULL,
    expires_us bigint,
    ended_us bigint,
    ended_by text NOT NULL,
    last_used_us bigint
);
CREATE TABLE public.users (
    tenant text NOT NULL,
    name text NOT NULL,
    roles text NOT NULL,
    enabled boolean NOT NULL,
    created_us bigint NOT NULL
);
ALTER TABLE ONLY public.audit ALTER COLUMN id SET DEFAULT nextval('public.audit_id_seq'::regclass);
ALTER TABLE ONLY public.job_events ALTER COLUMN number SET DEFAULT nextval('public.job_events_number_seq'::regclass);
ALTER TABLE ONLY public.jobs ALTER COLUMN number SET DEFAULT nextval('public.jobs_number_seq'::regclass);
INSERT INTO public.answers VALUES ('default', 'admin', 'k', 'f', 201, '\x00ff', 1767225600000000);
INSERT INTO public.audit VALUES (1, 1767225600000000, 'default', 'admin', 'tenant.create', 'tenant/acme', 'done', 'request-1', '{}');
INSERT INTO public.audit VALUES (2, 1767225600000000, 'default', 'admin', 'user.create', 'user/bob', 'done', 'request-1', '{"roles":["StreamDataWriter"]}');
INSERT INTO public.audit VALUES (3, 1767225600000000, 'default', 'admin', 'tenant.change', 'tenant/acme', 'done', 'request-1', '{"quota":{"topics":100,"disk_bytes":0}}');
INSERT INTO public.audit VALUES (4, 1767225600000000, 'default', 'admin', 'user.change', 'user/bob', 'done', 'request-1', '{"quota":{"requests_per_second":50}}');
INSERT INTO public.audit VALUES (5, 1767225600000000, 'default', 'admin', 'token.create', 'user/bob/token/6b86b273ff34fce1', 'done', 'request-1', '{"label":"\u00e9 \u2603","expires_us":1767229200000000}');
INSERT INTO public.audit VALUES (6, 1767225600000000, 'acme', 'bob', 'link.create', 'user/bob', 'done', '', '{}');
INSERT INTO public.catalog_revision VALUES ('0002');
INSERT INTO public.job_events VALUES (1, 1, 1767225600000000, 'queued', '');
INSERT INTO public.job_events VALUES (2, 1, 1767225600000000, 'running', '');
INSERT INTO public.job_events VALUES (3, 1, 1767225600000000, 'running', 'a note');
INSERT INTO public.jobs VALUES (1, '6955b9005feceb66ff000000', 'acme', 'backup', 'home', 'running', 0.25, 1, 'one', 'admin', 1767225600000000, 1767225600000000, NULL, '{"a":[1,null,"\u00fc"]}', NULL, NULL);
INSERT INTO public.leases VALUES ('archive/a', 'one', 1, 0, 1767225660000000, 60000000);
INSERT INTO public.leases VALUES ('job/6955b9005feceb66ff000000', 'one', 1, 1, 1767225660000000, 60000000);
INSERT INTO public.links VALUES ('46015aa7d30761508483c8c6dda0e9a60d9c2b3d7f163b6ffa31ab76efa591ba', 'acme', 'bob', '6b86b273ff34fce1', 1767225600000000, 1767225660000000, NULL);
INSERT INTO public.quotas VALUES ('acme', '', '{"disk_bytes":0,"topics":100}');
INSERT INTO public.quotas VALUES ('acme', 'bob', '{"requests_per_second":50}');
INSERT INTO public.tenants VALUES ('default', true, 1767225600000000);
INSERT INTO public.tenants VALUES ('acme', true, 1767225600000000);
INSERT INTO public.tokens VALUES ('home-faf6e9d4ca1563e2', 'default', 'admin', 'home', 'home-1', '', 'admin.token', 'faf6e9d4ca1563e265001760538013fe79bb8f25a67ce57b3f9e4ae758c54ad4', 1767225600000000, NULL, NULL, '', NULL);
INSERT INTO public.tokens VALUES ('6b86b273ff34fce1', 'acme', 'bob', 'token', '', '', 'é ☃', '5a5e8b9da1cc04f7886e383433702d85e517ded36573ca3ec4c97832a32644c3', 1767225600000000, 1767229200000000, NULL, '', NULL);
INSERT INTO public.users VALUES ('default', 'admin', '["AdminPanelManagement"]', true, 1767225600000000);
INSERT INTO public.users VALUES ('acme', 'bob', '["StreamDataWriter"]', true, 1767225600000000);
SELECT pg_catalog.setval('public.audit_id_seq', 6, true);
SELECT pg_catalog.setval('public.job_events_number_seq', 3, true);
SELECT pg_catalog.setval('public.jobs_number_seq', 1, true);
ALTER TABLE ONLY public.catalog_revision
    ADD CONSTRAINT catalog_revision_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.answers
    ADD CONSTRAINT pk_answers PRIMARY KEY (tenant, "user", key);
ALTER TABLE ONLY public.audit
    ADD CONSTRAINT pk_audit PRIMARY KEY (id);
ALTER TABLE ONLY public.job_events
    ADD CONSTRAINT pk_job_events PRIMARY KEY (number);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT pk_jobs PRIMARY KEY (number);
ALTER TABLE ONLY public.leases
    ADD CONSTRAINT pk_leases PRIMARY KEY (name);
ALTER TABLE ONLY public.links
    ADD CONSTRAINT pk_links PRIMARY KEY (digest);
ALTER TABLE ONLY public.quotas
    ADD CONSTRAINT pk_quotas PRIMARY KEY (tenant, "user");
ALTER TABLE ONLY public.tenants
    ADD CONSTRAINT pk_tenants PRIMARY KEY (name);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT pk_tokens PRIMARY KEY (id);
ALTER TABLE ONLY public.users
    ADD CONSTRAINT pk_users PRIMARY KEY (tenant, name);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT uq_jobs_id UNIQUE (id);
CREATE INDEX ix_answers_created_us ON public.answers USING btree (created_us);
CREATE INDEX ix_audit_at_us ON public.audit USING btree (at_us);
CREATE INDEX ix_audit_tenant_id ON public.audit USING btree (tenant, id);
CREATE INDEX ix_job_events_job ON public.job_events USING btree (job, number);
CREATE INDEX ix_jobs_state_kind ON public.jobs USING btree (state, kind, number);
CREATE INDEX ix_jobs_tenant_number ON public.jobs USING btree (tenant, number);
CREATE INDEX ix_tokens_expires_us ON public.tokens USING btree (expires_us);
CREATE INDEX ix_tokens_made_with ON public.tokens USING btree (made_with);
CREATE INDEX ix_tokens_tenant_user ON public.tokens USING btree (tenant, "user");
ALTER TABLE ONLY public.job_events
    ADD CONSTRAINT fk_job_events_job FOREIGN KEY (job) REFERENCES public.jobs(number) ON DELETE CASCADE;
ALTER TABLE ONLY public.links
    ADD CONSTRAINT fk_links_tenant_user FOREIGN KEY (tenant, "user") REFERENCES public.users(tenant, name) ON DELETE CASCADE;
ALTER TABLE ONLY public.quotas
    ADD CONSTRAINT fk_quotas_tenant FOREIGN KEY (tenant) REFERENCES public.tenants(name);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT fk_tokens_tenant_user FOREIGN KEY (tenant, "user") REFERENCES public.users(tenant, name) ON DELETE CASCADE;
ALTER TABLE ONLY public.users
    ADD CONSTRAINT fk_users_tenant FOREIGN KEY (tenant) REFERENCES public.tenants(name);
