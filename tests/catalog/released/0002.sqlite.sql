BEGIN TRANSACTION;
CREATE TABLE answers (
	tenant TEXT NOT NULL, 
	user TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	status INTEGER NOT NULL, 
	body BLOB, 
	created_us BIGINT NOT NULL, 
	CONSTRAINT pk_answers PRIMARY KEY (tenant, user, "key")
);
INSERT INTO "answers" VALUES('default','admin','k','f',201,X'00FF',1767225600000000);
CREATE TABLE audit (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	at_us BIGINT NOT NULL, 
	tenant TEXT NOT NULL, 
	user TEXT NOT NULL, 
	action TEXT NOT NULL, 
	subject TEXT NOT NULL, 
	outcome TEXT NOT NULL, 
	request_id TEXT NOT NULL, 
	details TEXT NOT NULL
);
INSERT INTO "audit" VALUES(1,1767225600000000,'default','admin','tenant.create','tenant/acme','done','request-1','{}');
INSERT INTO "audit" VALUES(2,1767225600000000,'default','admin','user.create','user/bob','done','request-1','{"roles":["StreamDataWriter"]}');
INSERT INTO "audit" VALUES(3,1767225600000000,'default','admin','tenant.change','tenant/acme','done','request-1','{"quota":{"topics":100,"disk_bytes":0}}');
INSERT INTO "audit" VALUES(4,1767225600000000,'default','admin','user.change','user/bob','done','request-1','{"quota":{"requests_per_second":50}}');
INSERT INTO "audit" VALUES(5,1767225600000000,'default','admin','token.create','user/bob/token/6b86b273ff34fce1','done','request-1','{"label":"\u00e9 \u2603","expires_us":1767229200000000}');
INSERT INTO "audit" VALUES(6,1767225600000000,'acme','bob','link.create','user/bob','done','','{}');
CREATE TABLE catalog_revision (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT catalog_revision_pkc PRIMARY KEY (version_num)
);
INSERT INTO "catalog_revision" VALUES('0002');
CREATE TABLE job_events (
	number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	job BIGINT NOT NULL, 
	at_us BIGINT NOT NULL, 
	state TEXT NOT NULL, 
	note TEXT NOT NULL, 
	CONSTRAINT fk_job_events_job FOREIGN KEY(job) REFERENCES jobs (number) ON DELETE CASCADE
);
INSERT INTO "job_events" VALUES(1,1,1767225600000000,'queued','');
INSERT INTO "job_events" VALUES(2,1,1767225600000000,'running','');
INSERT INTO "job_events" VALUES(3,1,1767225600000000,'running','a note');
CREATE TABLE jobs (
	number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	id TEXT NOT NULL, 
	tenant TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	subject TEXT NOT NULL, 
	state TEXT NOT NULL, 
	progress FLOAT NOT NULL, 
	attempts INTEGER NOT NULL, 
	owner TEXT, 
	created_by TEXT NOT NULL, 
	created_us BIGINT NOT NULL, 
	started_us BIGINT, 
	finished_us BIGINT, 
	details TEXT NOT NULL, 
	result TEXT, 
	error TEXT, 
	CONSTRAINT uq_jobs_id UNIQUE (id)
);
INSERT INTO "jobs" VALUES(1,'6955b9005feceb66ff000000','acme','backup','home','running',0.25,1,'one','admin',1767225600000000,1767225600000000,NULL,'{"a":[1,null,"\u00fc"]}',NULL,NULL);
CREATE TABLE leases (
	name TEXT NOT NULL, 
	holder TEXT NOT NULL, 
	fence BIGINT NOT NULL, 
	renewals BIGINT NOT NULL, 
	expires_us BIGINT NOT NULL, 
	ttl_us BIGINT NOT NULL, 
	CONSTRAINT pk_leases PRIMARY KEY (name)
);
INSERT INTO "leases" VALUES('archive/a','one',1,0,1767225660000000,60000000);
INSERT INTO "leases" VALUES('job/6955b9005feceb66ff000000','one',1,1,1767225660000000,60000000);
CREATE TABLE links (
	digest TEXT NOT NULL, 
	tenant TEXT NOT NULL, 
	user TEXT NOT NULL, 
	made_with TEXT NOT NULL, 
	created_us BIGINT NOT NULL, 
	expires_us BIGINT NOT NULL, 
	used_us BIGINT, 
	CONSTRAINT pk_links PRIMARY KEY (digest), 
	CONSTRAINT fk_links_tenant_user FOREIGN KEY(tenant, user) REFERENCES users (tenant, name) ON DELETE CASCADE
);
INSERT INTO "links" VALUES('46015aa7d30761508483c8c6dda0e9a60d9c2b3d7f163b6ffa31ab76efa591ba','acme','bob','6b86b273ff34fce1',1767225600000000,1767225660000000,NULL);
CREATE TABLE quotas (
	tenant TEXT NOT NULL, 
	user TEXT NOT NULL, 
	limits TEXT NOT NULL, 
	CONSTRAINT pk_quotas PRIMARY KEY (tenant, user), 
	CONSTRAINT fk_quotas_tenant FOREIGN KEY(tenant) REFERENCES tenants (name)
);
INSERT INTO "quotas" VALUES('acme','','{"disk_bytes":0,"topics":100}');
INSERT INTO "quotas" VALUES('acme','bob','{"requests_per_second":50}');
CREATE TABLE tenants (
	name TEXT NOT NULL, 
	enabled BOOLEAN NOT NULL, 
	created_us BIGINT NOT NULL, 
	CONSTRAINT pk_tenants PRIMARY KEY (name)
);
INSERT INTO "tenants" VALUES('default',1,1767225600000000);
INSERT INTO "tenants" VALUES('acme',1,1767225600000000);
CREATE TABLE tokens (
	id TEXT NOT NULL, 
	tenant TEXT NOT NULL, 
	user TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	home TEXT NOT NULL, 
	made_with TEXT NOT NULL, 
	label TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	created_us BIGINT NOT NULL, 
	expires_us BIGINT, 
	ended_us BIGINT, 
	ended_by TEXT NOT NULL, 
	last_used_us BIGINT, 
	CONSTRAINT pk_tokens PRIMARY KEY (id), 
	CONSTRAINT fk_tokens_tenant_user FOREIGN KEY(tenant, user) REFERENCES users (tenant, name) ON DELETE CASCADE
);
INSERT INTO "tokens" VALUES('home-faf6e9d4ca1563e2','default','admin','home','home-1','','admin.token','faf6e9d4ca1563e265001760538013fe79bb8f25a67ce57b3f9e4ae758c54ad4',1767225600000000,NULL,NULL,'',NULL);
INSERT INTO "tokens" VALUES('6b86b273ff34fce1','acme','bob','token','','','é ☃','5a5e8b9da1cc04f7886e383433702d85e517ded36573ca3ec4c97832a32644c3',1767225600000000,1767229200000000,NULL,'',NULL);
CREATE TABLE users (
	tenant TEXT NOT NULL, 
	name TEXT NOT NULL, 
	roles TEXT NOT NULL, 
	enabled BOOLEAN NOT NULL, 
	created_us BIGINT NOT NULL, 
	CONSTRAINT pk_users PRIMARY KEY (tenant, name), 
	CONSTRAINT fk_users_tenant FOREIGN KEY(tenant) REFERENCES tenants (name)
);
INSERT INTO "users" VALUES('default','admin','["AdminPanelManagement"]',1,1767225600000000);
INSERT INTO "users" VALUES('acme','bob','["StreamDataWriter"]',1,1767225600000000);
CREATE INDEX ix_tokens_expires_us ON tokens (expires_us);
CREATE INDEX ix_tokens_made_with ON tokens (made_with);
CREATE INDEX ix_tokens_tenant_user ON tokens (tenant, user);
CREATE INDEX ix_audit_at_us ON audit (at_us);
CREATE INDEX ix_audit_tenant_id ON audit (tenant, id);
CREATE INDEX ix_answers_created_us ON answers (created_us);
CREATE INDEX ix_jobs_state_kind ON jobs (state, kind, number);
CREATE INDEX ix_jobs_tenant_number ON jobs (tenant, number);
CREATE INDEX ix_job_events_job ON job_events (job, number);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('audit',6);
INSERT INTO "sqlite_sequence" VALUES('jobs',1);
INSERT INTO "sqlite_sequence" VALUES('job_events',3);
COMMIT;
